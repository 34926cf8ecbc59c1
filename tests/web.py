"""web.py: tests of infer_moe -m web; see web.sh. Standard library only."""
import argparse
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
ROOT = pathlib.Path(__file__).resolve().parent.parent
passed = failed = 0


def check(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if options.v or not good:
        print(("ok   " if good else "FAIL ") + "web       " + what, flush=True)


# ---- the server, and requests byte by byte

class Server:
    """closed: descriptors that it is started without; without stdout it cannot say its port, which is then given."""
    def __init__(self, folder, *arguments, model="model", closed=(), port=0):
        self.log = open(os.path.join(folder, "server.log"), "ab")
        self.process = subprocess.Popen([ROOT / "infer_moe", os.path.join(folder, model), "-m", "web", "-wp", str(port), *arguments],
                                        stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, "OMP_NUM_THREADS": "1"},
                                        preexec_fn=lambda: [os.close(fd) for fd in closed])
        self.link = self.process.stdout.readline().decode().strip()
        found = re.fullmatch(r"http://(.*):(\d+)/(?:#(\w+))?", self.link)
        self.port, self.token = (int(found[2]), found[3]) if found else (port, None)

    def connect(self, buffer=0):
        s = socket.socket()
        if buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        s.settimeout(20)
        s.connect(("127.0.0.1", self.port))
        return s

    def send(self, data):
        """The status of the answer and what follows its head."""
        with self.connect() as s:
            with contextlib.suppress(OSError):          # refused before all was sent
                s.sendall(data)
            return split(receive(s))

    def ask(self, path="/", method="GET", body=None, **fields):
        return self.send(request(path, method, body, self.port, **fields))

    def generate(self, **body):
        """What becomes of a text: status, body and, if it is made, events."""
        status, _, answer = self.ask("/generate", "POST", body)
        return status, answer, events(answer) if status == 200 else []

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        code = self.process.wait(10)
        self.process.stdout.close()
        self.log.close()
        return code


def request(path, method, body, port, **fields):
    fields = {"Host": f"127.0.0.1:{port}", **{k.replace("_", "-"): v for k, v in fields.items()}}
    if body is not None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **fields}
    head = "".join(f"{k}: {v}\r\n" for k, v in fields.items() if v is not None)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (body or b"")


def receive(s):
    data = b""
    with contextlib.suppress(OSError):
        while part := s.recv(65536):
            data += part
    return data


def split(data):
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1.1 (\d+) ", head)
    return (int(found[1]) if found else 0), head.decode("latin-1"), body


def events(body):
    """Those of a chunked answer; the last chunk must be there."""
    text = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        n = int(size or b"0", 16)
        if not n:
            return [json.loads(line) for line in text.splitlines()]
        text += body[:n]
        body = body[n + 2:]


def text_of(events):
    return "".join(e.get("text", "") for e in events)


def test_chat(folder, server):
    hi = [{"role": "user", "content": "Hi"}]
    chat_of = lambda server: json.loads(server.ask("/model")[2])["chat"]
    check(chat_of(server) == "", "a folder without a template has no chat")
    status, body, _ = server.generate(messages=hi)
    check(status == 400 and b"template" in body, f"and is not asked for answers: {status} {body}")
    talks = Server(folder, "-v", "0", model="chat")
    check(chat_of(talks) == "own", "a folder with one")
    said = talks.generate(messages=hi, tokens=30, seed=1, temperature=0.5)[2]
    form = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    same = talks.generate(prompt=form, tokens=30, seed=1, temperature=0.5, stop="<|im_end|>")[2]
    answer, whole = text_of(said), text_of(same)
    check(whole == form + answer and answer, f"the answer is what follows the template: {answer!r} {whole!r}")
    check(min(e["token"] for e in said if "text" in e) == len(form), "and has its own experts only")
    long = [{"role": ("user", "assistant")[i % 2], "content": str(i) * 4} for i in range(21)]
    said = talks.generate(messages=[{"role": "system", "content": "S"}, *long], tokens=3)[2]
    began = next(e for e in said if "dropped" in e)
    check(began["dropped"] > 0 and began["prompt_tokens"] <= 96, f"of a long chat the oldest turns go: {began}")
    for what, body in (("no list", {"messages": "a"}), ("an empty list", {"messages": []}), ("a number for a message", {"messages": [3]}),
                       ("another role", {"messages": [{"role": "x", "content": "a"}]}), ("no text", {"messages": [{"role": "user"}]}),
                       ("a prompt and messages", {"messages": long, "prompt": "a"})):
        status, answer, _ = talks.generate(**body)
        check(status == 400, f"{what}: {status} {answer}")
    for name, what, *option in (("zephyr", "-ct names a template", "-ct", "zephyr"),
                                ("own", "-z brings the template of its folder", "-z", os.path.join(folder, "chat/tokenizer.json"))):
        other = Server(folder, "-v", "0", *option)
        check(chat_of(other) == name and other.end() == 0, what)
    return talks


class Stream:
    """A generation that goes on."""
    def __init__(self, server, buffer=0, **body):
        self.socket = server.connect(buffer)
        self.socket.sendall(request("/generate", "POST", body, server.port))
        self.rest = b""
        self.events = []

    def wait(self, key, count=1, seconds=20):
        """Until `count` events have this key."""
        end = time.time() + seconds
        self.socket.settimeout(0.2)
        while sum(key in e for e in self.events) < count and time.time() < end:
            try:
                part = self.socket.recv(65536)
            except TimeoutError:
                continue
            self.rest += part
            *lines, self.rest = self.rest.split(b"\n")
            self.events += [json.loads(line) for line in lines if line.startswith(b"{")]
            if not part:
                break
        return sum(key in e for e in self.events) >= count


def test_answers(server, folder):
    status, head, page = server.ask()
    check(status == 200 and b"<title>smoe.c" in page, f"the page: {status}")
    script = re.search(rb"<script>(.*?)</script>", page, re.S)[1]
    style = re.search(rb"<style>(.*?)</style>", page, re.S)[1]
    for part in script, style:
        check("'sha256-" + base64.b64encode(hashlib.sha256(part).digest()).decode() + "'" in head, "the policy allows this script and style only")
    check("default-src 'none'" in head and "frame-ancestors 'none'" in head and "unsafe" not in head, "a strict policy")
    check(b"http:" not in page.replace(b"http://www.w3.org", b"") and b"https:" not in page, "the page refers to nothing")
    status, _, body = server.ask("/model")
    model = json.loads(body)
    check(status == 200 and model["context"] == 64 and [r["experts"] for r in model["routers"]] == [4, 4], "what the page must know")
    how = {"prompt": "The ", "tokens": 40, "seed": 7, "temperature": 0.7}
    said = server.generate(**how)[2]
    text = text_of(said)
    there = subprocess.run([ROOT / "infer_moe", os.path.join(folder, "model"), "-i", "The ", "-n", "40", "-s", "7", "-t", "0.7", "-v", "0"],
                           capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout.decode(errors="replace")
    check(text == there and len(text) > 20, f"the text is that of infer_moe -i: {text!r} {there!r}")
    check(said[-1]["end"] == "length" and said[-1]["tokens"] == 40, "it ends at its length")
    tokens = [e for e in said if "text" in e]
    check(all(len(e["experts"]) == 4 and all(0 <= x < 4 for x in e["experts"]) for e in tokens) and
          sorted({e["token"] for e in tokens}) == list(range(44)), "every token of prompt and text has its experts")
    stop = text[28:31]
    said = server.generate(**how, stop=stop)[2]
    check(text_of(said) == text[:text.index(stop, len("The "))] and said[-1]["end"] == "stop", "a stop string ends it")
    said = server.generate(prompt="x" * 100, tokens=0)[2]
    check([e["dropped"] for e in said if "seed" in e] == [36] and said[-1] | {"seconds": 0, "prompt_seconds": 0} ==
          {"end": "context", "tokens": 0, "seconds": 0, "prompt_seconds": 0}, "a prompt longer than the context")
    said = server.generate(prompt="", tokens=80)[2]
    check(said[-1]["end"] in ("length", "stop") and said[-1]["tokens"] > 64, "a text longer than the context")


def test_bounds(server):
    host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    post = {"path": "/generate", "method": "POST"}
    for what, expected, data in (               # test_web.c has what is wrong with a head
            ("no HTTP", 400, b"hello\r\n\r\n"),
            ("a head without end", 431, b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 20000),
            ("a body that is too long", 413, b"POST /generate HTTP/1.1\r\n" + host + b"Content-Length: 262145\r\n\r\n" + b" " * 262145),
            ("no such page", 404, request("/etc/passwd", "GET", None, server.port)),
            ("a path out of here", 404, request("/../../etc/passwd", "GET", None, server.port)),
            ("another method", 405, request("/", "DELETE", None, server.port)),
            ("POST to the page", 405, request("/", "POST", {}, server.port)),
            ("GET of a text", 405, request("/generate", "GET", None, server.port)),
            ("another type", 415, request(**post, body={}, port=server.port, Content_Type="text/plain")),
            ("no JSON", 400, request(**post, body=b"{\"prompt\": ", port=server.port)),
            ("JSON that is deep", 400, request(**post, body=b"[" * 1000, port=server.port)),
            ("an option that is none", 400, request(**post, body={"context": 3}, port=server.port)),
            ("a number out of range", 400, request(**post, body={"top-p": 2}, port=server.port)),
            ("a number that is none", 400, request(**post, body={"tokens": "many"}, port=server.port)),
            ("text without end", 400, request(**post, body={"tokens": -1}, port=server.port)),
            ("too much text", 400, request(**post, body={"tokens": 1 << 20}, port=server.port)),
            ("another name of this host", 421, request("/", "GET", None, server.port, Host=f"evil.example:{server.port}")),
            ("a name that begins like it", 421, request("/model", "GET", None, server.port, Host="127.0.0.1.evil.example")),
            ("another port of it", 200, request("/", "GET", None, server.port, Host="localhost:9")),
            ("its address in the other way", 200, request("/", "GET", None, server.port, Host=f"[::1]:{server.port}")),
            ("another origin", 403, request(**post, body={}, port=server.port, Origin="http://evil.example")),
            ("no origin at all", 403, request(**post, body={}, port=server.port, Origin="null")),
            ("another site", 403, request("/model", "GET", None, server.port, Sec_Fetch_Site="cross-site")),
            ("its own origin", 200, request(**post, body={"tokens": 1}, port=server.port, Origin=f"http://127.0.0.1:{server.port}",
                                            Sec_Fetch_Site="same-origin"))):
        status = server.send(data)[0]
        check(status == expected, f"{what}: {status}, expected {expected}")
    body = server.ask("/generate", "POST", {}, Content_Type="application/x-www-form-urlencoded")[2]
    check(b"Content-Type: application/json" in body, f"what curl sends is told which header it needs: {body}")
    whole = request("/model", "GET", None, server.port)
    with server.connect() as s:
        for i in range(len(whole)):
            s.sendall(whole[i:i + 1])
        check(split(receive(s))[0] == 200, "a request in single bytes")


def test_slow(server):
    """As many connections as there may be, each of which sends a byte now and then."""
    start = time.time()
    slow = [server.connect() for _ in range(32)]
    for s in slow:
        s.sendall(b"GET / HT")
    time.sleep(5)
    for s in slow:
        s.sendall(b"T")
    status = server.ask()[0]
    check(status == 200 and time.time() - start < 15, f"slow requests end after ten seconds: {time.time() - start:.1f} s, {status}")
    check(split(receive(slow[0]))[0] == 408, "and are told so")
    for s in slow:
        s.close()


class Silence:
    """Two clients that take nothing of long texts, and one that waits for a place: it gets one when they have been silent for 30 s. The
    other tests run meanwhile."""
    def __init__(self, folder):
        self.server = Server(folder, "-v", "0")
        self.start = time.time()
        self.silent = [Stream(self.server, buffer=2048, tokens=60000) for _ in range(2)]
        self.waits = Stream(self.server, tokens=3)
        self.seconds = 0
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        if self.waits.wait("end", seconds=90):
            self.seconds = time.time() - self.start

    def end(self):
        self.thread.join()
        check(28 < self.seconds < 75, f"clients that take nothing are closed after 30 s: {self.seconds:.1f} s, {self.waits.events}")
        check(all(b'"end"' not in receive(s.socket) for s in self.silent), "and do not get the rest")
        check(self.server.end() == 0, "their server ends")


def test_turns(server):
    alone = Stream(server, prompt="One ", tokens=200, seed=3)
    alone.wait("end")
    a = Stream(server, prompt="One ", tokens=60000, seed=3)
    check(a.wait("text", 20), "a long text begins")
    b = Stream(server, prompt="Two ", tokens=200, seed=4)
    check(b.wait("end") and not a.wait("end", seconds=0.01), "a second one is made beside it")
    a.wait("token", 205)
    check(text_of(a.events).startswith(text_of(alone.events)), "and changes nothing in the first")
    b = Stream(server, prompt="Two ", tokens=60000, seed=4)
    b.wait("text", 20)
    before = [len(x.events) for x in (a, b)]
    for x in (a, b):
        x.wait("text", len(x.events) + 500)
    c = Stream(server, prompt="Three ", tokens=20)
    check(c.wait("queue") and c.events[-1]["queue"] == 0 and not c.wait("seed", seconds=0.5), f"a third one waits: {c.events}")
    d = Stream(server, prompt="Four ", tokens=20)
    check(d.wait("queue") and d.events[-1]["queue"] == 1, "a fourth is behind it")
    c.socket.close()
    check(d.wait("queue", 2) and d.events[-1]["queue"] == 0, "and moves up if the third goes away")
    b.socket.close()
    check(d.wait("end"), "a client that goes away ends its text, and the next begins")
    e = Stream(server, prompt="Five ", tokens=2000, seed=1)
    e.wait("text", 20)
    n = [sum("text" in v for v in x.events) for x in (a, e)]
    a.events, e.events = [], []
    check(e.wait("text", 400) and a.wait("text", 300), f"two take turns {before} {n}")
    many = [Stream(server, prompt="", tokens=5) for _ in range(17)]
    time.sleep(0.5)
    refused = [split(s.socket.recv(4096))[0] for s in many[-1:]]
    check(refused == [503] or many[-1].wait("end"), f"too many are refused: {refused}")
    for x in [a, e, *many]:
        x.socket.close()
    check(server.generate(tokens=3)[0] == 200, "and it goes on")


def test_token(folder):
    server = Server(folder, "-wa", "0.0.0.0")
    check(server.token is not None and len(server.token) == 32, f"an address for others has a token: {server.link}")
    wrong = "0" * 31 + ("1" if server.token[-1] == "0" else "0")
    right = "Bearer " + server.token
    check(server.ask()[0] == 200, "the page itself needs none")
    for what, expected, given in (("no token", 401, None), ("another token", 401, "Bearer " + wrong), ("part of it", 401, right[:-1]),
                                  ("more of it", 401, right + "0"), ("the token", 200, right)):
        status = server.ask("/model", Authorization=given)[0]
        check(status == expected, f"{what}: {status}")
        status = server.ask("/generate", "POST", {"tokens": 1}, Authorization=given)[0]
        check(status == expected, f"{what}, of a text: {status}")
    check(server.ask("/model", Host="my.machine", Authorization=right)[0] == 200, "with a token any name will do")
    check(server.end(signal.SIGTERM) == 0, "SIGTERM ends it")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_closed(folder):
    """Started without some of stdin, stdout and stderr, whose numbers must not become those of clients."""
    for closed in (2,), (0, 2), (1,), (0, 1, 2):
        server = Server(folder, "-v", "1", closed=closed, port=free_port())
        for attempt in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port)):
                break
            time.sleep(0.05)
        said = [server.generate(prompt="The ", tokens=3, seed=1, temperature=0) for _ in range(2)]
        check(said[0][0] == 200 and text_of(said[0][2]) == text_of(said[1][2]) and said[0][2][-1].get("tokens") == 3,
              f"without descriptors {closed}: {said}")
        page = server.ask()
        check(page[2].endswith(b"</html>\n"), f"and nothing else gets into an answer: {page[2][-80:]}")
        code = server.end()
        check(code == 0, f"it ends well: {code}")
    server = Server(folder, "-wa", "0.0.0.0", closed=(1,))
    check(server.process.wait(20) == 5, "a link with a token that nobody can read is an error")
    server.end()


# ---- the page in a browser, by its debugging protocol over a pipe

class Browser:
    def __init__(self, program, folder):
        there, here = os.pipe(), os.pipe()
        wires = [os.dup2(there[0], 60), os.dup2(here[1], 61)]

        def wire():
            os.dup2(60, 3)
            os.dup2(61, 4)
        self.process = subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                                         f"--user-data-dir={folder}/profile", "about:blank"], preexec_fn=wire, close_fds=False, stderr=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL)
        for fd in wires + [there[0], here[1]]:
            os.close(fd)
        self.out, self.into = there[1], here[0]
        self.buffer, self.number, self.said = b"", 0, []

    def call(self, method, session=None, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                part = os.read(self.into, 1 << 20)
                if not part:
                    raise OSError("the browser has ended")
                self.buffer += part
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                return answer.get("result", answer.get("error"))
            self.said.append(answer)

    def end(self):
        self.call("Browser.close")
        self.process.wait(20)


class Page:
    def __init__(self, browser, link, width=1200, height=850, phone=False, dark=False):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Runtime", "Log", "Page":
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=link)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def get(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"].get("value")

    def until(self, expression, seconds=20):
        end = time.time() + seconds
        while not (value := self.get(expression)) and time.time() < end:
            time.sleep(0.05)
        return value

    def key(self, key, code, modifiers=0):
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def mouse(self, selector, *kinds, **button):
        x, y = self.get(f"(r => [r.left + r.width / 2, r.top + r.height / 2])(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        for kind in kinds:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click(self, selector):
        self.mouse(selector, "mousePressed", "mouseReleased", button="left", clickCount=1)

    def picture(self, name):
        if options.p:
            os.makedirs(options.p, exist_ok=True)
            data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)["data"]
            pathlib.Path(options.p, name + ".png").write_bytes(base64.b64decode(data))


def set_option(page, name, value):
    page.get(f"document.getElementById('option-{name}').value = {json.dumps(value)}")


ENDED = "/, (ended|reached its length)/.test(document.getElementById('state').textContent) && !document.getElementById('go').disabled"
TEXT = "document.getElementById('text').textContent"
BACKGROUNDS = "[...document.querySelectorAll('#text span')].map(s => s.style.background).join()"


def test_page(browser, server):
    page = Page(browser, server.link)
    check(page.until("document.querySelectorAll('#bars button').length") > 3, "the page loads, with a bar for each expert")
    check("parameters" in page.get("document.getElementById('model').textContent"), "and the name of the model")
    names = page.get("[...document.querySelectorAll('#options label')].map(l => l.textContent)")
    check(names == ["tokens", "temperature", "top-p", "min-p", "top-k", "repetition-penalty", "seed", "stop"], f"options: {names}")
    evil = "<img src=x onerror=alert(1)> The "
    page.call("Input.insertText", text=evil)
    set_option(page, "tokens", 25)
    set_option(page, "seed", 11)
    page.key("Enter", 13, modifiers=2)
    check(page.until(ENDED), "Ctrl and Enter generate: " + page.get("document.getElementById('state').textContent"))
    text = page.get(TEXT)
    check(text.startswith(evil) and len(text) > len(evil) + 10 and page.get("document.querySelectorAll('#text img').length") == 0,
          f"prompt and text, as text: {text!r}")
    check(re.search(r"seed 11, prompt of \d+ tokens, \d+ tokens, [\d,]+ tokens/s", page.get("document.getElementById('state').textContent")),
          "seed and speed: " + page.get("document.getElementById('state').textContent"))
    before = page.get(BACKGROUNDS)
    check(len(set(re.findall(r"hsl\S+|rgb[^)]+\)", before))) > 1, "tokens have the colors of experts: " + before[:80])
    page.get("(l => { l.value = '0'; l.dispatchEvent(new Event('change')); })(document.getElementById('layer'))")
    check(page.get(BACKGROUNDS) != before, "another layer, other colors")
    heights = page.get("[...document.querySelectorAll('#bars i')].map(i => parseFloat(i.style.height))")
    check(len(heights) >= 4 and sum(heights) > 0, f"loads: {heights}")
    page.mouse("#text span:nth-child(3)", "mouseMoved")
    tip = page.until("!document.getElementById('tip').hidden && document.getElementById('tip').textContent")
    check(tip and "layer 0 MLP: " in tip and "layer 1 MLP: " in tip, f"a token tells its experts: {tip!r}")
    page.click("#bars button:nth-child(2)")
    chosen = page.get("document.querySelectorAll('#text .chosen').length")
    check(0 < chosen < len(text) and page.get("document.querySelector('#bars button:nth-child(2)').getAttribute('aria-pressed')") == "true",
          f"a bar shows its tokens: {chosen}")
    page.picture("chosen")
    page.key("Escape", 27)
    check(page.get("document.querySelectorAll('#text .chosen').length") == 0, "Escape shows all again")
    page.picture("desktop")
    page.click("#on")
    check(page.until(ENDED) and page.get(TEXT).startswith(text), "Continue goes on from the text")
    set_option(page, "tokens", 60000)
    page.click("#go")
    check(page.until(TEXT + ".length > 300"), "a long text streams")
    check(re.search(r"tokens/s$", page.until("/tokens.s$/.test(document.getElementById('state').textContent) && document.getElementById('state').textContent") or ""),
          "with its speed")
    other = Page(browser, server.link)
    other.until("document.querySelectorAll('#bars button').length")
    set_option(other, "tokens", 30)
    other.click("#go")
    check(other.until(ENDED), "another client is served meanwhile")
    page.get("document.getElementById('stop').click()")
    check(page.until("/stopped/.test(document.getElementById('state').textContent)"), "Stop stops")
    n = page.get(TEXT + ".length")
    time.sleep(0.3)
    check(page.get(TEXT + ".length") == n and not page.get("document.getElementById('go').disabled"), "and nothing more comes")
    set_option(page, "top-p", 3)
    page.get("document.getElementById('go').click()")
    check(page.get("!document.getElementById('option-top-p').checkValidity() && document.getElementById('stop').disabled"), "an option out of range is not sent")


def test_chat_page(browser, talks):
    page = Page(browser, talks.link)
    check(page.until("document.getElementById('mode-chat').checked && !document.getElementById('modes').hidden"), "a model with a template chats")
    set_option(page, "tokens", 20)
    said = "[...document.querySelectorAll('#text > div')].map(d => [d.className, d.textContent])"
    for i, text in enumerate(("<b>Hi", "And now?")):
        page.call("Input.insertText", text=text)
        page.key("Enter", 13)
        check(page.until(ENDED), "Enter sends")
        turns = page.get(said)
        check([t[0] for t in turns] == ["user", "answer"] * (i + 1) and turns[-2][1] == text and page.get("document.getElementById('prompt').value") == "",
              f"question and answer: {turns}")
    page.picture("chat")
    check(page.get("[...document.querySelectorAll('.answer span')].some(s => s.style.background)"), "answers have colors")
    page.click("#new")
    check(page.get(said) == [] and page.get("document.getElementById('stop').disabled"), "a new chat is empty")
    page.get("document.getElementById('mode-text').click()")
    check(page.get("document.getElementById('go').textContent") == "Generate", "and texts can be continued, too")
    phone = Page(browser, talks.link, 360, 740, phone=True)
    phone.until("document.getElementById('mode-chat').checked")
    phone.get("document.getElementById('prompt').value = 'Hi'")
    phone.click("#go")
    check(phone.until(ENDED) and phone.get("document.documentElement.scrollWidth") <= 360, "a chat on a phone")
    phone.get("scrollTo(0, 0)")
    phone.picture("chat-phone")


def test_looks(browser, server):
    phone = Page(browser, server.link, 360, 740, phone=True, dark=True)
    phone.until("document.querySelectorAll('#bars button').length")
    check(phone.get("document.documentElement.scrollWidth") <= 360, "a phone of 360 pixels is wide enough")
    phone.get("document.getElementById('prompt').value = 'A phone '")
    set_option(phone, "tokens", 120)
    phone.click("#go")
    check(phone.until(ENDED) and phone.get("document.documentElement.scrollWidth") <= 360, "also for a text")
    dark = phone.get("getComputedStyle(document.body).backgroundColor")
    phone.get("scrollTo(0, 0)")
    phone.picture("phone")
    phone.get("scrollTo(0, 1e6)")
    phone.picture("phone-end")
    phone.get("document.getElementById('theme').click()")
    check(phone.get("getComputedStyle(document.body).backgroundColor") != dark, "light and dark")
    wide = Page(browser, server.link, 1200, 850, dark=True)
    wide.until("document.querySelectorAll('#bars button').length")
    set_option(wide, "tokens", 400)
    wide.click("#go")
    wide.until(ENDED)
    wide.get("scrollTo(0, 0)")
    wide.picture("dark")


def test_browser(folder, server, talks):
    names = [os.environ["BROWSER"]] if "BROWSER" in os.environ else ["chromium", "chromium-browser", "google-chrome"]
    name = next(filter(shutil.which, names), None)
    if not name:
        print("skip web       no chromium: the page was not driven (apt install chromium; BROWSER=name)")
        return
    browser = Browser(name, folder)
    try:
        browser.call("Browser.getVersion")
    except OSError as e:
        print(f"skip web       {name} does not start here: {e}")
        return
    test_page(browser, server)
    test_looks(browser, server)
    if talks:
        test_chat_page(browser, talks)
    said = [m["params"] for m in browser.said if m.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")]
    check(not said, f"the browser has nothing to complain about: {said[:1]}")
    browser.end()


def main():
    with tempfile.TemporaryDirectory() as folder:
        text = b"".join(p.read_bytes() for p in sorted((ROOT / "llmc/base").glob("*.c")))[:60000]
        pathlib.Path(folder, "text.txt").write_bytes(text)
        model = options.m
        if model:
            os.symlink(os.path.abspath(model), os.path.join(folder, "model"))
        else:
            train = lambda *a: subprocess.run([ROOT / "train_moe", *a], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                              env={**os.environ, "OMP_NUM_THREADS": "1"})
            train("-i", "text.txt", "-e", "m2:c32h2e4k2f32a1x1", "-b", "4", "-t", "64", "-x", "60", "-s", "0", "-o", "run")
            os.symlink("run/best", os.path.join(folder, "model"))
            lines = [json.dumps({"messages": [{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": str(i)}]}) for i in range(200)]
            pathlib.Path(folder, "chats.jsonl").write_text("\n".join(lines) + "\n")
            train("-i", "chats.jsonl", "-ct", "chatml", "-e", "m2:c32h2e4k2f32a1x1", "-b", "4", "-t", "128", "-x", "30", "-s", "0", "-o", "run-chat")
            pathlib.Path(folder, "run-chat", "chat_template.jinja").write_text(CHATML)
            os.symlink("run-chat", os.path.join(folder, "chat"))
        server = Server(folder, "-v", "0")
        silence = Silence(folder) if not model else None
        if not model:
            test_answers(server, folder)
            test_bounds(server)
            test_turns(server)
            test_token(folder)
            test_closed(folder)
        talks = test_chat(folder, server) if not model else None
        test_browser(folder, server, talks)
        if talks:
            check(talks.end() == 0, "the other server ends, too")
        if not model:
            test_slow(server)
            silence.end()
        endless = Stream(server, tokens=60000)
        endless.wait("text", 5)
        check(server.end() == 0, "Ctrl-C ends it, also while it generates")
        said = pathlib.Path(folder, "server.log").read_text()
        check("rror" not in said.replace("error: cannot write the link: Bad file descriptor", ""), "it says nothing else: " + said[-300:])
    print(f"ok   web       the server and its page: {passed} checks" if not failed else "")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


parser = argparse.ArgumentParser()
parser.add_argument("-v", action="store_true")
parser.add_argument("-p", metavar="FOLDER", help="keep pictures of the page there")
parser.add_argument("-m", metavar="MODEL", help="the page with this model only")
options = parser.parse_args()
if __name__ == "__main__":
    sys.exit(main())
