"""web.py: tests of infer_moe -m web; see web.sh. Standard library only."""
import argparse
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
# As Qwen2.5's: it says how calls are to be written, and writes earlier ones.
CALLING = ("{% if tools %}{{ '<|im_start|>system\\nAnswer <tool_call>{\"name\": <function-name>, \"arguments\": <args-json-object>}</tool_call>\\n' + "
           "tools[0].function.name + '<|im_end|>\\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
           "{% if message.tool_calls %}{{ '<tool_call>' + message.tool_calls[0].function.arguments | tojson + '</tool_call>' }}{% else %}"
           "{{ message['content'] }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ROOT = pathlib.Path(__file__).resolve().parent.parent
passed = failed = 0


said_at = time.time()


def check(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    global said_at
    if options.v or not good:
        print(("ok   " if good else "FAIL ") + "web       " + what, flush=True)
    elif time.time() - said_at > 8:                     # a slow machine is not silent
        print(f"     web       {passed + failed} checks so far", flush=True)
    else:
        return
    said_at = time.time()


# ---- the server, and requests byte by byte

class Server:
    """closed: descriptors that it is started without; without stdout it cannot say its port, which is then given. limit: of descriptors."""
    def __init__(self, folder, *arguments, model="model", closed=(), port=0, limit=0):
        self.log = open(os.path.join(folder, "server.log"), "ab")
        self.process = subprocess.Popen([ROOT / "infer_moe", os.path.join(folder, model), "-m", "web", "-wp", str(port), *arguments],
                                        stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, "OMP_NUM_THREADS": "1"},
                                        preexec_fn=lambda: self.prepare(closed, limit))
        self.link = self.process.stdout.readline().decode().strip()
        found = re.fullmatch(r"http://(.*):(\d+)/(?:#(\w+))?", self.link)
        self.port, self.token = (int(found[2]), found[3]) if found else (port, None)

    @staticmethod
    def prepare(closed, limit):
        for fd in closed:
            os.close(fd)
        if limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

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

    def generate(self, path=None, **body):
        """What becomes of a text that is streamed: status, body and, if it is made, events."""
        status, _, answer = self.ask(path_of(path, body), "POST", {"stream": True, **body})
        return status, answer, events(answer) if status == 200 else []

    def complete(self, path=None, expected=200, **body):
        """The same as a whole; the answer, or the error."""
        status, _, answer = self.ask(path_of(path, body), "POST", body)
        check(status == expected, f"{body}: {status} {answer}")
        answer = json.loads(answer)
        return answer if expected == 200 else answer["error"]

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


def shown(text):
    """As infer_moe prints it."""
    return text + "\n" * (text[-1:] != "\n")


def path_of(path, body):
    return path or ("/v1/chat/completions" if "messages" in body else "/v1/completions")


def chunks(body):
    """The text of a chunked answer; the last chunk must be there."""
    text = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        n = int(size or b"0", 16)
        if not n:
            return text
        text += body[:n]
        body = body[n + 2:]


def events(body):
    *said, last, end = chunks(body).split(b"\n\n")
    check(last == b"data: [DONE]" and end == b"", f"a stream ends with [DONE]: {last!r} {end!r}")
    check(all(e.startswith((b"data: {", b": queue ")) for e in said), "and is of events and comments")
    return [json.loads(e[6:]) for e in said if e.startswith(b"data: ")]


def choices(events, index=0):
    return [c for e in events for c in e["choices"] if c["index"] == index]


def text_of(events, index=0):
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices(events, index))


def ended(events, index=0):
    return [(c["finish_reason"], c["ended"]) for c in choices(events, index) if c["finish_reason"]]


def test_controls(folder):
    """Control tokens that messages spell out are counted, and with -sp 1 the model reads them as text."""
    spelt, plain = ([{"role": "user", "content": text}] for text in ("a<|endoftext|>b", "ab"))
    tokens = []
    for sp in "0", "1":
        words = Server(folder, "-v", "0", "-sp", sp, model="words")
        answer = words.complete(messages=spelt, max_tokens=1, seed=1)
        check(answer.get("control_tokens") == 1, f"-sp {sp}: a control token of a message is counted: {answer}")
        check(words.generate(messages=spelt, max_tokens=1, seed=1)[2][0].get("control_tokens") == 1, f"-sp {sp}: in a stream, too")
        check("control_tokens" not in words.complete(messages=plain, max_tokens=1, seed=1), f"-sp {sp}: but not where there is none")
        tokens.append(answer["usage"]["prompt_tokens"])
        words.end()
    check(tokens[0] < tokens[1], f"and -sp 1 reads it as text: {tokens}")


def test_chat(folder, server):
    hi = [{"role": "user", "content": "Hi"}]
    chat_of = lambda server: model_of(server)["smoe"]["chat"]
    check(chat_of(server) == "", "a folder without a template has no chat")
    check("template" in server.complete(messages=hi, expected=400)["message"], "and is not asked for answers")
    talks = Server(folder, "-v", "0", model="chat")
    check(chat_of(talks) == "own", "a folder with one")
    said = talks.generate(messages=hi, max_tokens=30, seed=1, temperature=0.5, experts=True)[2]
    form = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    same = talks.generate(prompt=form, max_tokens=30, seed=1, temperature=0.5, stop="<|im_end|>", echo=True)[2]
    answer, whole = text_of(said), text_of(same)
    check(whole == form + answer and answer, f"the answer is what follows the template: {answer!r} {whole!r}")
    check(sum(len(c["experts"]) for c in choices(said)) >= len(answer), "and has its own experts only")
    whole = talks.complete(messages=hi, max_tokens=30, seed=1, temperature=0.5)
    check(whole["choices"][0]["message"] == {"role": "assistant", "content": answer, "refusal": None} and whole["object"] == "chat.completion"
          and said[0]["object"] == "chat.completion.chunk", "as a whole it is the same")
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
    check(talks.complete(messages=parts, max_tokens=30, seed=1, temperature=0.5)["choices"] == whole["choices"], "contents may be parts")
    long = [{"role": ("user", "assistant")[i % 2], "content": str(i) * 4} for i in range(21)]
    for key in "max_tokens", "max_completion_tokens":
        check(talks.complete(messages=hi, **{key: 3})["usage"]["completion_tokens"] == 3, f"{key} is read")
    said = talks.generate(messages=[{"role": "system", "content": "S"}, *long], max_tokens=3, truncation="auto", stream_options={"include_usage": True})[2]
    check(said[0]["dropped"] > 0 and said[-1]["usage"]["prompt_tokens"] <= 96, f"of a long chat the oldest turns go: {said[0]}")
    check(talks.complete(messages=long * 2, expected=400)["code"] == "context_length_exceeded", "unless it is not said that they may")
    odds = talks.complete(messages=hi, max_tokens=4, seed=1, logprobs=True, top_logprobs=3)["choices"][0]
    listed = odds["logprobs"]["content"]
    check(len(listed) == 4 and all(len(t["top_logprobs"]) == 3 and t["logprob"] <= 0 for t in listed)
          and b"".join(bytes(t["bytes"]) for t in listed).decode(errors="replace") == odds["message"]["content"], f"tokens with their odds: {odds}")
    for what, key, body in (("no list", "messages", {"messages": "a"}), ("an empty list", "messages", {"messages": []}),
                            ("a number for a message", "messages", {"messages": [3]}), ("another role", "messages", {"messages": [{"role": "x", "content": "a"}]}),
                            ("no text", "messages", {"messages": [{"role": "user"}]}), ("a picture", "messages", {"messages": [
                                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}),
                            ("a prompt and messages", "prompt", {"messages": hi, "prompt": "a"}), ("odds of none", "top_logprobs", {"messages": hi, "top_logprobs": 2}),
                            ("a grammar", "response_format", {"messages": hi, "response_format": {"type": "json_object"}}),
                            ("functions", "tools", {"messages": hi, "tools": [{"type": "function", "function": {"name": "f"}}]}),
                            ("how much to think", "reasoning_effort", {"messages": hi, "reasoning_effort": "low"})):
        e = talks.complete(path="/v1/chat/completions", expected=400, **body)
        check(e["param"] == key and e["message"], f"{what}: {e}")
    for what, body in (("text as the form", {"response_format": {"type": "text"}}), ("no functions", {"tools": [], "tool_choice": "none"})):
        check(talks.complete(messages=hi, max_tokens=1, **body)["choices"], f"{what} is what there is")
    for name, what, *option in (("zephyr", "-ct names a template", "-ct", "zephyr"),
                                ("own", "-z brings the template of its folder", "-z", os.path.join(folder, "chat/tokenizer.json"))):
        other = Server(folder, "-v", "0", *option)
        check(chat_of(other) == name and other.end() == 0, what)
    return talks


def test_tools(folder):
    """A model that has learned to call a function."""
    server = Server(folder, "-v", "0", "-t", "0", model="calls")
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
    ask = [{"role": "user", "content": "Go"}]
    said = server.complete(messages=ask, tools=tools, logprobs=True)["choices"][0]
    call = (said["message"].get("tool_calls") or [{}])[0]
    check(said["finish_reason"] == "tool_calls" and said["message"]["content"] is None and call.get("type") == "function" and call["id"]
          and call["function"]["name"] == "add" and json.loads(call["function"]["arguments"]) == {"a": 1}, f"a call is read out of the answer: {said['message']}")
    check("".join(t["token"] for t in said["logprobs"]["content"]) == CALL, "its tokens are as they were")
    stream = server.generate(messages=ask, tools=tools)[2]
    found = [t for c in choices(stream) for t in c["delta"].get("tool_calls", [])]
    check(text_of(stream) == "" and len(found) == 1 and found[0]["index"] == 0 and json.loads(found[0]["function"]["arguments"]) == {"a": 1}
          and ended(stream) == [("tool_calls", "stop")], f"in a stream, too: {found}")
    plain = server.complete(messages=ask, tools=tools, tool_choice="none", max_tokens=20)["choices"][0]
    check("tool_calls" not in plain["message"], "with the choice none they are not offered")
    earlier = [*ask, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": "2"}]
    text = "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n<tool_call>{\"a\": 1}</tool_call><|im_end|>\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"
    check(server.complete(messages=earlier, max_tokens=1)["usage"]["prompt_tokens"] == len(text), "a call of before and its answer are written by the template")
    for key, more in ("tool_choice", {"tool_choice": "required"}), ("parallel_tool_calls", {"parallel_tool_calls": False}), ("tools", {"tools": [3]}):
        check(server.complete(**{"messages": ask, "tools": tools, **more}, expected=400)["param"] == key, f"{more} is refused")
    check(server.end() == 0, "the server ends")


def test_client(folder, talks):
    """The same by the client that most programs have."""
    try:
        import openai
    except ImportError:
        print("skip web       no openai package for this python3: its client was not tried (pip install openai)")
        return
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{talks.port}/v1", api_key="none", max_retries=0)
    name = client.models.list().data[0].id
    how = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "seed": 1, "max_tokens": 20}
    whole = client.chat.completions.create(**how, logprobs=True, top_logprobs=2).choices[0]
    parts = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    check("".join(e.choices[0].delta.content or "" for e in parts if e.choices) == whole.message.content and parts[-1].usage.completion_tokens == 20
          and len(whole.logprobs.content[0].top_logprobs) == 2, "openai: a chat, as a whole and as a stream")
    cut = client.chat.completions.create(**how, stop=[re.search(r"[ -~]", whole.message.content)[0]]).choices[0]
    check(cut.finish_reason == "stop" and whole.message.content.startswith(cut.message.content) and client.models.retrieve(name).id == name, "openai: stop, models")
    text = client.completions.create(model=name, prompt="The ", max_tokens=5, n=2, logprobs=1, seed=1)
    check(len(text.choices) == 2 and text.usage.completion_tokens == 10 and len(text.choices[1].logprobs.tokens) == 5, "openai: completions")
    for kind, body in (openai.NotFoundError, {"model": "gpt-4"}), (openai.BadRequestError, {"extra_body": {"foo": 1}}):
        try:
            client.chat.completions.create(**{**how, **body})
            check(False, "openai: errors")
        except kind as e:
            check(e.param in ("model", "foo") and e.code and e.body["message"], f"openai: {e}")
    server = Server(folder, "-wa", "0.0.0.0")
    locked = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="wrong", max_retries=0)
    try:
        locked.models.list()
        check(False, "openai: a wrong key")
    except openai.AuthenticationError as e:
        check(e.code == "invalid_api_key", "openai: a wrong key is its AuthenticationError")
    right = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token, max_retries=0)
    check(right.models.list().data[0].id == "run" and server.end() == 0, "openai: and the right one opens")


class Stream:
    """A generation that goes on."""
    def __init__(self, server, buffer=0, **body):
        self.socket = server.connect(buffer)
        self.socket.sendall(request("/v1/completions", "POST", {"stream": True, "truncation": "auto", **body}, server.port))
        self.rest = b""
        self.events = []

    def wait(self, key, count=1, seconds=300):
        """Until `count` events have this key: "head" of the answer, "queue", "text", "end"."""
        end = time.time() + seconds
        self.socket.settimeout(0.2)
        while sum(key in e for e in self.events) < count and time.time() < end:
            try:
                part = self.socket.recv(65536)
            except TimeoutError:
                continue
            self.rest += part
            *lines, self.rest = self.rest.split(b"\n")
            self.events += [e for line in lines for e in self.read(line)]
            if not part:
                break
        return sum(key in e for e in self.events) >= count

    @staticmethod
    def read(line):
        if line.startswith(b"HTTP/1.1 200 "):
            return [{"head": True}]
        if line.startswith(b": queue "):
            return [{"queue": int(line[8:])}]
        for c in json.loads(line[6:])["choices"] if line.startswith(b"data: {") else []:
            return [{"end": c["ended"], "text": c["text"]} if c["finish_reason"] else {"text": c["text"]}]
        return []

    def text(self):
        return "".join(e.get("text", "") for e in self.events)


def model_of(server):
    return json.loads(server.ask("/v1/models")[2])["data"][0]


def test_answers(server, folder):
    status, head, page = server.ask()
    check(status == 200 and b"<title>smoe.c" in page, f"the page: {status}")
    script = re.search(rb"<script>(.*?)</script>", page, re.S)[1]
    style = re.search(rb"<style>(.*?)</style>", page, re.S)[1]
    for part in script, style:
        check("'sha256-" + base64.b64encode(hashlib.sha256(part).digest()).decode() + "'" in head, "the policy allows this script and style only")
    check("default-src 'none'" in head and "frame-ancestors 'none'" in head and "unsafe" not in head, "a strict policy")
    check(b"http:" not in page.replace(b"http://www.w3.org", b"") and b"https:" not in page, "the page refers to nothing")
    model = model_of(server)
    check(model["id"] == "run" and model["smoe"]["context"] == 64 and [r["experts"] for r in model["smoe"]["routers"]] == [4, 4], "what the page must know")
    check(json.loads(server.ask("/v1/models/run")[2]) == model, "and the model by its name")
    how = {"prompt": "The ", "max_tokens": 40, "seed": 7, "temperature": 0.7}
    said = server.generate(**how, echo=True, experts=True, logprobs=2)[2]
    text = text_of(said)
    there = subprocess.run([ROOT / "infer_moe", os.path.join(folder, "model"), "-i", "The ", "-n", "40", "-s", "7", "-t", "0.7", "-v", "0"],
                           capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout.decode(errors="replace")
    check(shown(text) == there and len(text) > 20, f"the text is that of infer_moe -i: {text!r} {there!r}")
    check(ended(said) == [("length", "length")], f"it ends at its length: {ended(said)}")
    experts = [e for c in choices(said) for e in c["experts"]]
    check(len(experts) == 44 and all(len(e) == 4 and all(0 <= x < 4 for x in e) for e in experts), "every token of prompt and text has its experts")
    odds = [c["logprobs"] for c in choices(said) if c["logprobs"]]
    names = [t for o in odds for t in o["tokens"]]
    check([t.encode() if not t.startswith("bytes:") else bytes.fromhex(t[8:]) for t in names] == [bytes([b]) for b in text.encode()], f"and its name: {names}")
    logs, tops = [x for o in odds for x in o["token_logprobs"]], [x for o in odds for x in o["top_logprobs"]]
    check(logs[0] is None and all(x <= 0 for x in logs[1:]) and tops[0] is None, f"and its odds, but for the first: {logs}")
    check(all(t[n] == x and 2 <= len(t) <= 3 and max(t.values()) >= x for t, n, x in zip(tops[1:], names[1:], logs[1:])), "with the likeliest two")
    check([x for o in odds for x in o["text_offset"]] == list(range(44)), "and where it begins")
    whole = server.complete(**how, echo=True, experts=True, logprobs=2)
    check(whole["choices"][0]["text"] == text and whole["choices"][0]["logprobs"]["token_logprobs"] == logs and whole["choices"][0]["experts"] == experts,
          "as a whole it is the same")
    check(whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 40, "total_tokens": 44} and whole["seed"] == 7, f"and is counted: {whole['usage']}")
    fed = server.complete(prompt=list(text[:20].encode()), max_tokens=0, echo=True, logprobs=0)["choices"][0]
    check(fed["text"] == text[:20] and all(abs(x - y) < 1e-3 for x, y in zip(fed["logprobs"]["token_logprobs"][1:], logs[1:20])),
          "a text that is only read has the odds that it was drawn with")
    stop, plain = text[28:31], text[len("The "):]
    for what, stops, end in (("a stop string", stop, stop), ("the first of several", ["none", text[35:37], stop], min(stop, text[35:37], key=plain.index))):
        said = server.generate(**how, stop=stops)[2]
        check(text_of(said) == plain[:plain.index(end)] and ended(said) == [("stop", "stop")], f"{what} ends it: {text_of(said)!r} {stops}")
    there = subprocess.run([ROOT / "infer_moe", os.path.join(folder, "model"), "-i", "The ", "-n", "40", "-s", "7", "-t", "0.7", "-v", "0", "-st",
                            json.dumps(["none", stop])], capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout.decode(errors="replace")
    check(there == shown(text[:text.index(stop, 4)]), f"and that of infer_moe -st, which may be a list, too: {there!r}")
    several = server.complete(**how, n=2, echo=True)["choices"]
    there = subprocess.run([ROOT / "infer_moe", os.path.join(folder, "model"), "-i", "The ", "-n", "40", "-s", "7", "-t", "0.7", "-v", "0", "-r", "2"],
                           capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout.decode(errors="replace")
    check(there == "".join(f"--- {i + 1} of 2\n" + shown(c["text"]) for i, c in enumerate(several)),
          f"several choices are the texts of infer_moe -r: {there!r} {several}")
    said = server.generate(**how, n=2)[2]
    check([text_of(said, i) for i in (0, 1)] == [c["text"][4:] for c in several], "one after another in a stream")
    said = server.complete(prompt=["The ", "One ", [84, 119, 111]], max_tokens=20, seed=1)["choices"]
    check([c["index"] for c in said] == [0, 1, 2] and len({c["text"] for c in said}) > 1, f"several prompts, as text and tokens: {said}")
    said = server.generate(prompt="x" * 100, max_tokens=0, truncation="auto")[2]
    check(said[0]["dropped"] == 36 and ended(said) == [("length", "length")], f"a prompt longer than the context: {said[0]}")
    check(server.complete(prompt="x" * 64, expected=400)["code"] == "context_length_exceeded", "which is refused, unless it may be cut")
    said = server.complete(prompt="", max_tokens=80)
    check(said["choices"][0]["ended"] in ("context", "stop") and said["usage"]["completion_tokens"] <= 64, f"a text ends with the context: {said['usage']}")
    said = server.complete(prompt="", max_tokens=80, truncation="auto")
    check(said["choices"][0]["ended"] in ("length", "stop") and said["usage"]["completion_tokens"] > 64, f"unless it may slide: {said['usage']}")
    same = [server.complete(**how, **more)["choices"][0]["text"] for more in ({}, {"frequency_penalty": 2}, {"presence_penalty": 2}, {"presence_penalty": -2},
                                                                              {"repetition_penalty": 1.5})]
    check(len(set(same)) == 5, f"penalties change the text: {same}")
    once = server.complete(prompt="The ", max_tokens=50, temperature=0, frequency_penalty=2)["choices"][0]["text"]
    often = server.complete(prompt="The ", max_tokens=50, temperature=0)["choices"][0]["text"]
    check(len(set(once)) > len(set(often)), f"the likeliest tokens repeat less: {often!r} {once!r}")
    for more in {"user": "me"}, {"metadata": {"a": "b"}}, {"store": True}, {"service_tier": "auto"}, {"model": "run"}, {"logit_bias": {}}, {"suffix": None}, {"foo": None}:
        check(server.complete(**how, **more)["choices"][0]["text"] == plain, f"{more} changes nothing")


def test_bounds(server):
    host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    post = {"path": "/v1/completions", "method": "POST"}
    for what, expected, data in (               # test_web.c has what is wrong with a head
            ("no HTTP", 400, b"hello\r\n\r\n"),
            ("a head without end", 431, b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 20000),
            ("a body that is too long", 413, b"POST /v1/completions HTTP/1.1\r\n" + host + b"Content-Length: 262145\r\n\r\n" + b" " * 262145),
            ("no such page", 404, request("/etc/passwd", "GET", None, server.port)),
            ("a path out of here", 404, request("/../../etc/passwd", "GET", None, server.port)),
            ("another method", 405, request("/", "DELETE", None, server.port)),
            ("POST to the page", 405, request("/", "POST", {}, server.port)),
            ("GET of a text", 405, request("/v1/completions", "GET", None, server.port)),
            ("a bracket without its other", 421, request("/", "GET", None, server.port, Host="[localhost")),
            ("a name in brackets", 421, request("/", "GET", None, server.port, Host="[127.0.0.1]")),
            ("more behind brackets", 421, request("/", "GET", None, server.port, Host="[::1]x")),
            ("a port that is none", 421, request("/", "GET", None, server.port, Host="127.0.0.1:80.evil.example")),
            ("a type that begins like it", 415, request(**post, body={}, port=server.port, Content_Type="application/jsonx")),
            ("its type with a parameter", 200, request(**post, body={"max_tokens": 1}, port=server.port, Content_Type="Application/JSON ; charset=utf-8")),
            ("another type", 415, request(**post, body={}, port=server.port, Content_Type="text/plain")),
            ("no JSON", 400, request(**post, body=b"{\"prompt\": ", port=server.port)),
            ("JSON that is deep", 400, request(**post, body=b"[" * 1000, port=server.port)),
            ("no object", 400, request(**post, body=[3], port=server.port)),
            ("a model that is not here", 404, request(**post, body={"model": "gpt-4"}, port=server.port)),
            ("POST to the models", 405, request("/v1/models", "POST", {}, server.port)),
            ("a name that is none", 404, request("/v1/models/gpt-4", "GET", None, server.port)),
            ("a preflight", 405, request("/v1/completions", "OPTIONS", None, server.port)),
            ("another name of this host", 421, request("/", "GET", None, server.port, Host=f"evil.example:{server.port}")),
            ("a name that begins like it", 421, request("/v1/models", "GET", None, server.port, Host="127.0.0.1.evil.example")),
            ("another port of it", 200, request("/", "GET", None, server.port, Host="localhost:9")),
            ("its address in the other way", 200, request("/", "GET", None, server.port, Host=f"[::1]:{server.port}")),
            ("another origin", 403, request(**post, body={}, port=server.port, Origin="http://evil.example")),
            ("no origin at all", 403, request(**post, body={}, port=server.port, Origin="null")),
            ("another site", 403, request("/v1/models", "GET", None, server.port, Sec_Fetch_Site="cross-site")),
            ("its own origin", 200, request(**post, body={"max_tokens": 1}, port=server.port, Origin=f"http://127.0.0.1:{server.port}",
                                            Sec_Fetch_Site="same-origin"))):
        status = server.send(data)[0]
        check(status == expected, f"{what}: {status}, expected {expected}")
    for key, code, body in (("context", "unsupported_parameter", {"context": 3}), ("top_p", None, {"top_p": 2}), ("max_tokens", None, {"max_tokens": "many"}),
                            ("max_tokens", None, {"max_tokens": -1}), ("max_tokens", None, {"max_tokens": 1 << 20}), ("n", None, {"n": 17}),
                            ("prompt", None, {"prompt": ["a"] * 9, "n": 2}), ("prompt", None, {"prompt": [256]}), ("prompt", None, {"prompt": []}),
                            ("prompt", None, {"prompt": [[]]}), ("prompt", None, {"prompt": {"a": 1}}), ("stop", None, {"stop": [""]}),
                            ("stop", None, {"stop": ["a"] * 17}), ("stop", None, {"stop": 3}), ("seed", None, {"seed": 0.5}), ("stream", None, {"stream": 1}),
                            ("stream_options", None, {"stream_options": {"include_usage": True}}), ("best_of", None, {"best_of": 2}),
                            ("logprobs", None, {"logprobs": 21}), ("logprobs", None, {"logprobs": True}), ("logit_bias", "unsupported_value", {"logit_bias": {"3": 1}}),
                            ("suffix", "unsupported_value", {"suffix": "a"}), ("truncation", None, {"truncation": "some"}), ("messages", "unsupported_parameter", {"messages": []}),
                            ("max_tokens", None, {"max_tokens": 60000, "logprobs": 20, "truncation": "auto"})):
        e = server.complete(path="/v1/completions", expected=400, **body)
        check(e["param"] == key and e["code"] == code and e["type"] == "invalid_request_error" and e["message"], f"{body} is refused by name: {e}")
    head = server.ask("/v1/models", Origin=f"http://127.0.0.1:{server.port}")[1]
    check("Access-Control" not in head, "no other origin is let in")
    body = server.ask("/v1/completions", "POST", {}, Content_Type="application/x-www-form-urlencoded")[2]
    check(b"Content-Type: application/json" in body, f"what curl sends is told which header it needs: {body}")
    whole = request("/v1/models", "GET", None, server.port)
    with server.connect() as s:
        for i in range(len(whole)):
            s.sendall(whole[i:i + 1])
        check(split(receive(s))[0] == 200, "a request in single bytes")


class Strangers:
    """300 connections from a process of its own that want nothing honest; one that is closed comes again after a second. Each kind: what
    is sent at first and later, every second; whether it then ends its side; whether it reads; its receive buffer."""
    KINDS = {"silent": (b"", b"", False, 0), "slow": (b"GET / HT", b"T", False, 0), "half-open": (b"GET / HTTP/1.1\r\nHost: ", b"", True, 0),
             "greedy": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n", False, 2048)}
    PROGRAM = """
import selectors, socket, sys, time
port, count, first, more, ends, buffer = int(sys.argv[1]), int(sys.argv[2]), *map(eval, sys.argv[3:7])
wait, due, told = selectors.DefaultSelector(), [(0, None)] * count, 0
while True:
    now = time.time()
    for at, s in [x for x in due if x[0] <= now]:
        due.remove((at, s))
        try:
            if s is None:
                s = socket.socket()
                if buffer:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
                s.settimeout(5)
                s.connect(("127.0.0.1", port))
                s.setblocking(False)
                wait.register(s, selectors.EVENT_READ if not buffer else selectors.EVENT_WRITE)
                s.send(first)
                if ends:
                    s.shutdown(socket.SHUT_WR)
            elif more:
                s.send(more)
            due.append((now + 1, s))
        except OSError:
            if s in wait.get_map():
                wait.unregister(s)
            s.close()
            due.append((now + 1, None))
    if told == 0 and not any(s is None for at, s in due):
        told = print("all here", flush=True) or 1
    for key, events in wait.select(0.05) if not buffer else ():
        try:
            data = key.fileobj.recv(4096)
        except OSError:
            data = b""
        if b" 408 " in data:
            print("408", flush=True)
        if not data:
            wait.unregister(key.fileobj)
            key.fileobj.close()
            due = [x for x in due if x[1] is not key.fileobj] + [(time.time() + 1, None)]
    if buffer:
        time.sleep(0.05)
"""

    def __init__(self, server, kind, count=300):
        first, more, ends, buffer = self.KINDS[kind]
        self.process = subprocess.Popen([sys.executable, "-c", self.PROGRAM, str(server.port), str(count), repr(first), repr(more), repr(ends),
                                         repr(buffer)], stdout=subprocess.PIPE)
        if kind != "half-open":                         # those never are all there
            self.process.stdout.readline()

    def end(self):
        """What they were told."""
        self.process.kill()
        said = self.process.stdout.read().decode()
        self.process.stdout.close()
        self.process.wait()
        return said


def test_strangers(server):
    """An honest client is served while they are there: before any of them, who would be told that time is up after ten seconds."""
    for kind in Strangers.KINDS:
        strangers = Strangers(server, kind)
        said = [server.ask("/v1/models")[0] for _ in range(40)] + [server.generate(prompt="The ", max_tokens=3)[0] for _ in range(5)]
        told = strangers.end()
        check(said == [200] * 45 and "408" not in told, f"beside 300 {kind} strangers: {said}, {told}")


def measure(server, rounds=7, seconds=2):
    """Requests a second of one client, alone and beside strangers of each kind, in turns: medians."""
    def rate(what):
        start, n = time.time(), 0
        while time.time() - start < seconds:
            n += what()[0] == 200
        return n / (time.time() - start)
    for name, what in (("GET /v1/models", lambda: server.ask("/v1/models")), ("a text of 8 tokens", lambda: server.generate(prompt="The ", max_tokens=8))):
        for kind in Strangers.KINDS:
            alone, beside = [], []
            for _ in range(rounds):
                alone.append(rate(what))
                strangers = Strangers(server, kind)
                beside.append(rate(what))
                strangers.end()
            ratio = statistics.median(b / a for a, b in zip(alone, beside))
            print(f"{name}: alone {statistics.median(alone):.0f}/s, beside 300 {kind} strangers {statistics.median(beside):.0f}/s: {100 * ratio:.0f} %", flush=True)


def test_slow(server):
    """As many connections as the server has places, each of which sends a byte now and then."""
    start = time.time()
    slow = [server.connect() for _ in range(64)]
    for s in slow:
        s.sendall(b"GET / HT")
    time.sleep(5)
    for s in slow:
        with contextlib.suppress(OSError):
            s.sendall(b"T")
    status = server.ask()[0]
    check(status == 200 and receive(slow[0]) == b"", f"the oldest gives way to another: {status}")
    check(split(receive(slow[1]))[0] == 408 and time.time() - start < 600, "the others are told so when their time is up")
    for s in slow:
        s.close()


def test_descriptors(folder):
    """With few descriptors the oldest gives way, too."""
    server = Server(folder, "-v", "0", limit=20)
    there = [server.connect() for _ in range(40)]
    said = [server.ask("/v1/models")[0] for _ in range(5)]
    check(said == [200] * 5, f"with 20 descriptors and 40 silent clients: {said}")
    for s in there:
        s.close()
    check(server.end() == 0, "and it ends well")


class Silence:
    """Two clients that take very little of long texts, and one that waits: it gets its turn when they have held it up for 10 s. One that takes
    nothing is closed after 30 s, though nobody waits. The other tests run meanwhile."""
    def __init__(self, folder):
        self.server, self.other = Server(folder, "-v", "0"), Server(folder, "-v", "0")
        self.start = time.time()
        self.alone = Stream(self.other, buffer=2048, max_tokens=60000)
        self.slow = [Stream(self.server, buffer=2048, max_tokens=60000) for _ in range(2)]
        self.waits = Stream(self.server, max_tokens=3)
        self.closed = 0
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while time.time() < self.start + 2000 and not self.waits.wait("end", seconds=0.5):
            for s in self.slow:
                s.rest += s.socket.recv(64)
            self.probe()
        end = time.time() + 300                         # both are read: one that is not would be closed
        while time.time() < end and not any([s.wait("end", seconds=0.2) for s in self.slow]):
            pass
        self.ended = sum(s.wait("end", seconds=0) and s.events[-1]["end"] == "time" for s in self.slow)
        while time.time() < self.start + 2000 and not self.closed:
            time.sleep(0.2)
            self.probe()

    def probe(self):
        """Sending fails once the other side is closed: when that was seen first, in seconds."""
        try:
            if not self.closed:
                self.alone.socket.send(b"x")
        except OSError:
            self.closed = time.time() - self.start

    def end(self):
        self.thread.join()
        check(any("end" in e for e in self.waits.events), f"who waits gets a turn although two take little: {self.waits.events}")
        check(self.ended >= 1, "of these, one at least is told that its time is over")
        check(self.closed > 28, f"a client that takes nothing is closed, after 30 s: {self.closed:.0f} s")
        check(b'"ended"' not in receive(self.alone.socket), "and does not get the rest")
        check(self.server.end() == 0 and self.other.end() == 0, "their servers end")


def test_turns(server):
    alone = Stream(server, prompt="One ", max_tokens=200, seed=3)
    alone.wait("end")
    a = Stream(server, prompt="One ", max_tokens=60000, seed=3)
    check(a.wait("text", 20), "a long text begins")
    b = Stream(server, prompt="Two ", max_tokens=200, seed=4)
    check(b.wait("end") and not a.wait("end", seconds=0.01), "a second one is made beside it")
    a.wait("text", 205)
    check(a.text().startswith(alone.text()), "and changes nothing in the first")
    b = Stream(server, prompt="Two ", max_tokens=60000, seed=4)
    b.wait("text", 20)
    before = [len(x.events) for x in (a, b)]
    for x in (a, b):
        x.wait("text", len(x.events) + 500)
    c = Stream(server, prompt="Three ", max_tokens=20)
    check(c.wait("queue") and c.events[-1]["queue"] == 0 and not c.wait("text", seconds=0.5), f"a third one waits: {c.events}")
    d = Stream(server, prompt="Four ", max_tokens=20)
    check(d.wait("queue") and d.events[-1]["queue"] == 1, "a fourth is behind it")
    c.socket.close()
    check(d.wait("queue", 2) and d.events[-1]["queue"] == 0, "and moves up if the third goes away")
    b.socket.close()
    check(d.wait("end"), "a client that goes away ends its text, and the next begins")
    e = Stream(server, prompt="Five ", max_tokens=2000, seed=1)
    e.wait("text", 20)
    n = [sum("text" in v for v in x.events) for x in (a, e)]
    a.events, e.events = [], []
    check(e.wait("text", 400) and a.wait("text", 300), f"two take turns {before} {n}")
    many = [Stream(server, prompt="", max_tokens=5) for _ in range(17)]
    time.sleep(0.5)
    refused = [split(s.socket.recv(4096))[0] for s in many[-1:]]
    check(refused == [503] or many[-1].wait("end"), f"too many are refused: {refused}")
    for x in [a, e, *many]:
        x.socket.close()
    check(server.generate(max_tokens=3)[0] == 200, "and it goes on")


def test_reading(folder):
    """While a long prompt is read, others are served, and whoever has sent it may go."""
    subprocess.run([ROOT / "train_moe", "-i", "text.txt", "-e", "m6:c256h4e8k2f256", "-b", "1", "-t", "2048", "-x", "1", "-s", "0", "-nb", "0",
                    "-o", "long"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    server = Server(folder, "-v", "0", model="long")
    text = pathlib.Path(folder, "text.txt").read_text()[:2000]
    alone = server.generate(prompt=text, max_tokens=3, seed=1)[2]
    served = beside = 0
    for attempt in range(5):                            # the server may be done before this process has asked
        reading = Stream(server, prompt=text, max_tokens=3, seed=1)
        other = Stream(server, prompt="The ", max_tokens=60000)
        reading.wait("head")
        served += server.ask("/v1/models")[0] == 200 and not reading.wait("text", seconds=0.001)
        beside += other.wait("text", 20) and not reading.wait("text", seconds=0.001)
        other.socket.close()
        reading.wait("end", seconds=60)
        check(reading.text() == text_of(alone), "what others do changes nothing in its text")
        if served and beside:
            break
    check(served, "while a long prompt is read, another client is served")
    check(beside, "and another text is generated")
    gone = [Stream(server, prompt=text, max_tokens=3) for _ in range(6)]
    gone[0].wait("head")
    for s in gone:
        s.socket.close()
    check(text_of(server.generate(prompt=text, max_tokens=3, seed=1)[2]) == text_of(alone), "prompts whose clients have gone leave nothing behind")
    check(server.end() == 0, "and it ends well")


def test_token(folder):
    server = Server(folder, "-wa", "0.0.0.0")
    check(server.token is not None and len(server.token) == 32, f"an address for others has a token: {server.link}")
    wrong = "0" * 31 + ("1" if server.token[-1] == "0" else "0")
    right = "Bearer " + server.token
    check(server.ask()[0] == 200, "the page itself needs none")
    for what, expected, given in (("no token", 401, None), ("another token", 401, "Bearer " + wrong), ("part of it", 401, right[:-1]),
                                  ("more of it", 401, right + "0"), ("the token", 200, right)):
        status = server.ask("/v1/models", Authorization=given)[0]
        check(status == expected, f"{what}: {status}")
        status = server.ask("/v1/completions", "POST", {"max_tokens": 1}, Authorization=given)[0]
        check(status == expected, f"{what}, of a text: {status}")
    check(server.ask("/v1/models", Host="my.machine", Authorization=right)[0] == 200, "with a token any name will do")
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
        said = [server.generate(prompt="The ", max_tokens=3, seed=1, temperature=0) for _ in range(2)]
        check(said[0][0] == 200 and text_of(said[0][2]) == text_of(said[1][2]) and ended(said[0][2]) == [("length", "length")],
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

    def until(self, expression, seconds=300):
        end = time.time() + seconds
        truth = f"Promise.resolve({expression}).then(value => !!value)"     # an element itself would come as {}, which is false
        while not (value := self.get(truth)) and time.time() < end:
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
    page.get(f"(i => {{ i.value = {json.dumps(str(value))}; i.dispatchEvent(new Event('input')); }})(document.getElementById('option-{name}'))")


STATE = "document.getElementById('state').textContent"
IDLE = "!document.getElementById('send').classList.contains('stops')"
TEXT = "[...document.querySelectorAll('.message .body')].map(b => b.textContent).join('')"
TURNS = "[...document.querySelectorAll('.message')].map(m => [m.classList[1], m.querySelector('.body').textContent])"
BACKGROUNDS = "[...document.querySelectorAll('.token')].map(s => s.style.background).join()"
KEPT = "JSON.parse(localStorage.getItem('smoe.c')).talks"


def open_page(browser, link, *how, **more):
    page = Page(browser, link, *how, **more)
    page.until("document.getElementById('about').textContent")
    return page


def send(page, text, waits=True):
    """What Enter does with a text in the field below."""
    page.get("document.getElementById('prompt').focus()")
    if text:
        page.call("Input.insertText", text=text)
    page.key("Enter", 13)
    return page.until(IDLE + " && /^(Done|The model)/.test(" + STATE + ")") if waits else None


def choose(page, element, value):
    page.get(f"(s => {{ s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})(document.getElementById('{element}'))")


def test_page(browser, server):
    page = open_page(browser, server.link)
    check("parameters" in page.get("document.getElementById('about').textContent"), "the page loads, with the model")
    check(page.get("document.getElementById('new-chat').hidden") and page.get("document.getElementById('title').textContent") == "New text",
          "a model without a template continues texts")
    names = page.get("[...document.querySelectorAll('#options label')].map(l => l.textContent)")
    check(len(names) == 9 and names[0] == "Longest answer, tokens" and names[-1] == "Seed", f"settings: {names}")
    evil = "<img src=x onerror=alert(1)> The "
    set_option(page, "max_tokens", 25)
    set_option(page, "seed", 11)
    check(send(page, evil), "Enter writes on: " + page.get(STATE))
    text = page.get(TEXT)
    there = server.complete(prompt=evil, max_tokens=25, seed=11, echo=True)["choices"][0]["text"]
    check(text == there and page.get("document.querySelectorAll('#messages img').length") == 0, f"prompt and text, as text: {text!r} {there!r}")
    info = page.get("document.querySelector('.assistant .info').textContent")
    check(re.match(r"25 tokens\b.*reached its longest length", info), f"how it went, in words: {info}")
    check(page.get("document.querySelectorAll('.token').length") >= len(text.strip()), "every token of prompt and text is one of the page")
    check("hsl" not in page.get(BACKGROUNDS) and "rgb" not in page.get(BACKGROUNDS), "without colors at first")
    choose(page, "color", "0")
    before = page.get(BACKGROUNDS)
    check(len(set(re.findall(r"hsl\S+|rgb[^)]+\)", before))) > 1, "then with those of a layer's experts: " + before[:80])
    choose(page, "color", "1")
    check(page.get(BACKGROUNDS) != before, "another layer, other colors")
    choose(page, "color", "odds")
    check(len(set(page.get(BACKGROUNDS).split("),"))) > 5, "and of their probability")
    page.click(".assistant .token")
    shown = page.get("document.getElementById('token').innerText")
    check(re.search(r"probability of this token was .*%", shown) and "layer 0" in shown and "layer 1" in shown, f"a token tells its experts: {shown!r}")
    odds = page.get("[...document.querySelectorAll('.odds b')].map(b => b.textContent)")
    check(6 <= len(odds) <= 7 and page.get("document.querySelectorAll('.odds .this').length") == 1, f"and what else could have been there: {odds}")
    page.get("document.activeElement.blur()")
    page.key("ArrowRight", 39)
    check(page.get("document.querySelector('.token.here').textContent") == text[len(evil) + 1], "an arrow goes on to the next")
    page.picture("token")
    page.click("#tab-experts")
    rows = page.get("[...document.querySelectorAll('#map .cells')].map(c => [...c.children].map(b => Number(b.firstChild.style.opacity)))")
    check([len(r) for r in rows] == [4, 4] and all(sum(r) > 0 for r in rows), f"the experts of all layers: {rows}")
    of_all = page.get("document.getElementById('map-says').textContent")
    page.click("#kinds button[data-kind=words]")
    check(page.get("document.getElementById('map-says').textContent") != of_all and "words" in page.get("document.querySelector('#map button').dataset.tip"),
          "by kind of token")
    page.click("#map button:nth-child(2)")
    n = page.get("document.querySelectorAll('.token.chosen').length")
    check(0 < n < page.get("document.querySelectorAll('.token').length"), f"an expert shows its tokens: {n}")
    page.picture("experts")
    page.key("Escape", 27)
    check(page.get("document.querySelectorAll('#messages.focus').length") == 0, "Escape shows all again")
    page.key("Escape", 27)
    check(page.get("document.getElementById('panel').hidden"), "and closes the panel")
    check(send(page, "") and page.get(TEXT).startswith(text) and len(page.get(TEXT)) > len(text), "without a word it goes on from there")
    page.click(".message:last-of-type [data-act=again]")
    check(page.until("/seed in Settings is fixed/.test(" + STATE + ")"), "with a fixed seed, again is the same, and it says so: " + page.get(STATE))
    set_option(page, "max_tokens", 60000)
    send(page, "", waits=False)
    check(page.until(TEXT + ".length > 300"), "a long text streams")
    other = open_page(browser, server.link)
    other.click("#new-text")
    set_option(other, "max_tokens", 30)
    check(send(other, "Two"), "another client is served meanwhile")
    page.key("Escape", 27)
    check(page.until(IDLE), "Escape stops it, unless it has ended")
    # an answer that goes on for as long as the test likes
    page.call("Page.bringToFront")
    page.get("window.real = fetch; window.fetch = async (path, how) => new Response(new ReadableStream({ start(c) { window.more = () => c.enqueue(new TextEncoder().encode("
             "'data: {\"choices\": [{\"text\": \"a\", \"logprobs\": {\"tokens\": [\"a\"], \"token_logprobs\": [-1]}}]}\\n\\n')); "
             "how.signal.onabort = () => c.error(new DOMException('', 'AbortError')); more(); } }))")
    send(page, "", waits=False)
    page.until("/Writing/.test(" + STATE + ")")
    check(page.until("(more(), /Writing: .* per second/.test(" + STATE + "))"), "what goes on has its speed: " + page.get(STATE))
    send(page, "more", waits=False)
    check("Still writing" in page.get(STATE) and page.get("document.getElementById('prompt').value") == "more", "Enter meanwhile is not ignored in silence")
    page.key("Escape", 27)
    check(page.until("/^Stopped/.test(" + STATE + ")"), "Escape stops")
    page.get("window.fetch = real")
    n = page.get(TEXT + ".length")
    time.sleep(0.3)
    check(page.get(TEXT + ".length") == n and page.get(IDLE), "and nothing more comes")
    page.click(".message:last-of-type [data-act=edit]")
    check(len(page.get("document.getElementById('prompt').value")) >= n and page.get(TURNS) == [], "the text can be edited")
    set_option(page, "top_p", 3)
    page.get("document.getElementById('send').click()")
    check("Top p must be a number from 0 to 1" in page.get(STATE) and page.get(IDLE), "a setting out of range is not sent, and it says which: " + page.get(STATE))
    page.get("localStorage.removeItem('smoe.c')")


def test_chat_page(browser, talks):
    page = open_page(browser, talks.link)
    check(not page.get("document.getElementById('new-chat').hidden") and page.get("document.getElementById('title').textContent") == "New chat", "a model with a template chats")
    send(page, "", waits=False)
    check(page.get(STATE) == "Write a message first.", "nothing is no message, and it says so")
    set_option(page, "max_tokens", 20)
    for i, text in enumerate(("<b>Hi", "And now?")):
        check(send(page, text), "Enter sends")
        turns = page.get(TURNS)
        check([t[0] for t in turns] == ["user", "assistant"] * (i + 1) and turns[-2][1] == text and page.get("document.getElementById('prompt').value") == "",
              f"question and answer: {turns}")
    page.call("Input.insertText", text="one")
    page.key("Enter", 13, modifiers=8)
    check(len(page.get(TURNS)) == 4 and page.get("document.getElementById('prompt').value").startswith("one"), "Shift and Enter do not send")
    page.get("document.getElementById('prompt').value = ''")
    page.picture("chat")
    check(page.get("document.querySelectorAll('.assistant .token').length") > 10 and page.get("document.querySelectorAll('.user .token').length") == 0, "answers are of tokens")
    before = page.get(TURNS)
    page.get(STATE[:-12] + ".textContent = ''")
    page.click(".message:last-of-type [data-act=again]")
    check(page.until(IDLE + " && /^Done/.test(" + STATE + ")") and page.get(TURNS)[:3] == before[:3] and len(page.get(TURNS)) == 4, "the last answer is made again")
    page.get("document.querySelector('.user [data-act=edit]').click()")
    check(page.get("document.querySelector('.user textarea').value") == "<b>Hi", "a message can be edited")
    page.get("document.querySelector('.user textarea').value = 'Ho'")
    page.key("Enter", 13)
    check(page.until(IDLE + " && document.querySelectorAll('.message').length === 2 && document.querySelector('.assistant .info')")
          and [t[0] for t in page.get(TURNS)] == ["user", "assistant"] and page.get(TURNS)[0][1] == "Ho", f"and is sent again, without what came after: {page.get(TURNS)}")
    page.get("document.getElementById('system').value = 'Be brief'; document.getElementById('system').dispatchEvent(new Event('input'))")
    check(page.get(KEPT + "[0].system") == "Be brief" and page.get(KEPT + "[0].messages.length") == 2, "the conversation stays in the browser")
    again = open_page(browser, talks.link)
    check(again.get(TURNS) == [] and again.get("document.querySelectorAll('#list li').length") == len(again.get(KEPT)) + 1, "a new visit has a new chat, and lists the others")
    again.get("[...document.querySelectorAll('#list .name')].find(b => b.title === 'Ho').click()")
    check(again.get(TURNS) == page.get(TURNS), "and opens them")
    again.get("document.querySelector('#list .here [data-act=edit]').click()")
    again.get("document.querySelector('#list input').value = 'My talk'")
    again.key("Enter", 13)
    check(again.get("document.getElementById('title').textContent") == "My talk" and "My talk" in [t["title"] for t in again.get(KEPT)], "one can be renamed")
    n = len(again.get(KEPT))
    again.get("document.querySelector('#list .here [data-act=delete]').click()")
    check(len(again.get(KEPT)) == n - 1 and "Deleted" in again.get(STATE), "and deleted")
    again.get("document.querySelector('#state button').click()")
    check(len(again.get(KEPT)) == n and again.get("document.getElementById('title').textContent") == "My talk", "and that can be undone")
    again.get("document.getElementById('new-text').click()")
    check(again.get("document.getElementById('title').textContent") == "New text", "texts can be continued, too")
    broken = open_page(browser, talks.link)
    broken.get("window.fetch = async () => { throw new TypeError('x'); }")
    send(broken, "Hi", waits=False)
    check(broken.until("document.querySelectorAll('.trouble button').length === 1") and "does not answer" in broken.get("document.querySelector('.trouble').textContent"),
          "that a server is gone is said, with a way on")
    check(broken.get(TURNS) == [["user", "Hi"]], "and the question stays")
    broken.get("localStorage.removeItem('smoe.c')")


MARKDOWN = """# Title <i>
Two **bold *both* words** and `x < 1 **`, snake_case_name, \\*none\\*, 2 * 3 * 4
next line

- one
  - inner **b**
- two

3. three
4. four

> quoted
> <script>alert(1)</script>

```py
if a < b:

    print("**")
```
---
```
open [x](javascript:alert(1))"""
HTML = ("<h2>Title &lt;i&gt;</h2><p>Two <strong>bold <em>both</em> words</strong> and <code>x &lt; 1 **</code>, snake_case_name, *none*, 2 * 3 * 4\nnext line</p>"
        "<ul><li>one<ul><li>inner <strong>b</strong></li></ul></li><li>two</li></ul><ol start=\"3\"><li>three</li><li>four</li></ol>"
        "<blockquote><p>quoted\n&lt;script&gt;alert(1)&lt;/script&gt;</p></blockquote>"
        "<pre><code>if a &lt; b:\n\n    print(\"**\")</code></pre><hr><pre><code>open [x](javascript:alert(1))</code></pre>")
COPIED = ("(async () => { let said = ''; navigator.clipboard.writeText = async t => { said = t; }; document.querySelector('%s').click(); "
          "await new Promise(r => setTimeout(r, 50)); return said; })()")


def test_markdown(browser, talks):
    """An answer of an earlier visit, with Markdown."""
    page = open_page(browser, talks.link)
    talk = {"id": 1, "kind": "chat", "title": "", "system": "", "messages": [{"role": "user", "text": "**as** <b>it</b> is"}, {"role": "assistant", "text": MARKDOWN}]}
    page.get(f"localStorage.setItem('smoe.c', JSON.stringify({{ talks: [{json.dumps(talk)}] }}))")
    page = open_page(browser, talks.link)
    page.get("document.querySelectorAll('#list .name')[1].click()")
    html = page.get("(b => { b.querySelectorAll('.code > div').forEach(x => x.remove()); b.querySelectorAll('.code').forEach(x => x.replaceWith(...x.childNodes)); "
                    "return b.innerHTML; })(document.querySelector('.assistant .body').cloneNode(true))")
    check(html == HTML, f"Markdown becomes elements, and nothing else does:\n{html}\n{HTML}")
    check(page.get("document.querySelector('.user .body').innerHTML") == "**as** &lt;b&gt;it&lt;/b&gt; is", "what the user wrote is as it was")
    check(page.get(COPIED % ".code button") == 'if a < b:\n\n    print("**")\n', "code is copied")
    check(page.get(COPIED % ".assistant .actions [data-act=copy]") == MARKDOWN, "an answer is copied as it was written")
    page.picture("markdown")
    page.get("document.getElementById('plain').click()")
    check(page.get("document.querySelector('.assistant .body').textContent") == MARKDOWN, "and is shown so, if asked for")
    page.get("localStorage.removeItem('smoe.c')")


def test_looks(browser, talks):
    phone = open_page(browser, talks.link, 360, 740, phone=True, dark=True)
    set_option(phone, "max_tokens", 60)
    check(send(phone, "A phone " * 4) and phone.get("document.documentElement.scrollWidth") <= 360, "a phone of 360 pixels is wide enough")
    inside = ("(e => { const r = e.getBoundingClientRect(); return r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth; })"
              "(document.querySelector('%s'))")
    check(phone.get(inside % "#composer") and phone.get(inside % "#send"), "the field is below the text, and all of it can be seen")
    phone.picture("phone")
    phone.get("document.querySelector('.token').click()")
    check(phone.get(inside % "#panel") and phone.get(inside % ".token.here"), "so can a token, and what is known of it")
    phone.picture("phone-token")
    phone.click("#close")
    phone.click("#menu")
    check(phone.get(inside % "#side"), "and the other conversations")
    phone.click("#new-chat")
    dark = phone.get("getComputedStyle(document.body).backgroundColor")
    phone.click("#theme")
    check(phone.get("getComputedStyle(document.body).backgroundColor") != dark, "light and dark")
    phone.click("#theme")
    wide = open_page(browser, talks.link, 1200, 850, dark=True)
    send(wide, "Hello")
    wide.get("document.getElementById('show-experts').click()")
    choose(wide, "color", "1")
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
    if talks:
        test_markdown(browser, talks)
        test_chat_page(browser, talks)
        test_looks(browser, talks)
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
            train("-i", "chats.jsonl", "-ct", "chatml", "-tk", "280", "-e", "m2:c32h2e4k2f32a1x1", "-b", "4", "-t", "128", "-x", "5", "-s", "0", "-o", "words")
            pathlib.Path(folder, "calls.jsonl").write_text(200 * (json.dumps({"tools": [{"type": "function", "function": {"name": "add"}}], "messages": [
                {"role": "user", "content": "Go"}, {"role": "assistant", "content": CALL}]}) + "\n"))
            pathlib.Path(folder, "calling.jinja").write_text(CALLING)
            train("-i", "calls.jsonl", "-ct", "calling.jinja", "-e", "m2:c64h2e4k2f64", "-b", "4", "-t", "256", "-x", "100", "-l", "4e-3", "-s", "0", "-o", "run-calls")
            os.symlink("run-calls", os.path.join(folder, "calls"))
        server = Server(folder, "-v", "0")
        if options.l:
            measure(server)
            return server.end()
        silence = Silence(folder) if not model else None
        if not model:
            test_answers(server, folder)
            test_bounds(server)
            test_turns(server)
            test_token(folder)
            test_closed(folder)
            test_controls(folder)
        talks = test_chat(folder, server) if not model else None
        if talks:
            test_tools(folder)
            test_client(folder, talks)
        test_browser(folder, server, talks)
        if talks:
            check(talks.end() == 0, "the other server ends, too")
        if not model:
            test_reading(folder)
            test_strangers(server)
            test_descriptors(folder)
            test_slow(server)
            silence.end()
        endless = Stream(server, max_tokens=60000)
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
parser.add_argument("-l", action="store_true", help="measure one client beside strangers, and nothing else")
parser.add_argument("-m", metavar="MODEL", help="the page with this model only")
options = parser.parse_args()
if __name__ == "__main__":
    sys.exit(main())
