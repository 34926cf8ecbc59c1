// page.js: asks the server of infer_moe -m web (docs/api.md) and shows what it says as it comes. What a model or a user wrote becomes
// text nodes, never markup.
'use strict';
(function () {
const $ = id => document.getElementById(id);
const secret = location.hash.slice(1);
const state = { model: null, abort: null, tokens: [], loads: [], router: 0, chosen: -1, theme: null, last: null, target: null, messages: [] };

function node(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const k in attributes) if (attributes[k] != null) e.setAttribute(k, attributes[k]);
    e.append(...children);
    return e;
}
const count = x => Math.round(x).toString().replace(/\B(?=(\d{3})+$)/g, ',');
const short = x => x >= 1e9 ? (x / 1e9).toFixed(1) + ' G' : x >= 1e6 ? (x / 1e6).toFixed(1) + ' M' : x >= 1e3 ? (x / 1e3).toFixed(0) + ' k' : String(x);
// Neighbours in number are far apart in hue; after a turn or so the lightness changes.
const color = (e, alpha) => 'hsl(' + (e * 137.5 + 10) % 360 + ' 75% ' + [52, 40, 64][Math.floor(e / 12) % 3] + '% / ' + alpha + ')';

async function ask(path, body, signal) {
    const headers = secret ? { Authorization: 'Bearer ' + secret } : {};
    if (body) headers['Content-Type'] = 'application/json';
    const answer = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal });
    if (answer.ok) return answer;
    const why = await answer.json().catch(() => ({}));
    throw new Error(answer.status === 401 ? 'Open this page by the link that infer_moe printed: it ends with the token.' : why.error && why.error.message || 'status ' + answer.status);
}

// ---- options

function options_make(options) {
    for (const o of options) {
        const number = o.name !== 'stop';
        const input = node('input', { id: 'option-' + o.name, type: number ? 'number' : 'text', title: o.help, autocomplete: 'off',
                min: number ? o.low : null, max: number ? o.high : null, step: number ? o.whole ? 1 : 'any' : null,
                placeholder: o.name === 'seed' ? 'random' : o.name === 'stop' ? 'none' : null });
        if (o.value != null) input.value = o.value;
        $('options').append(node('label', { for: 'option-' + o.name, title: o.help }, o.name), input);
    }
}
function options_read() {
    const body = {};
    for (const o of state.model.options) {
        const input = $('option-' + o.name), value = input.value.trim();
        if (!input.checkValidity()) { input.reportValidity(); return null; }
        if (o.name === 'stop') { if (input.value) body.stop = input.value; }
        else if (value) body[o.name] = Number(value);
    }
    return body;
}

// ---- experts: a token has the choices of all routers in one list

function layers_make(routers) {
    let at = 0;
    for (const r of routers) { r.at = at; at += r.chosen; }
    routers.forEach((r, i) => $('layer').append(node('option', { value: i }, 'layer ' + r.layer + ', ' + r.name)));
    $('experts').hidden = !routers.length;
    if (!routers.length) return;
    const last = routers.length - 1;
    state.router = last;
    $('layer').value = last;
    layer_show();
}
const router = () => state.model.routers[state.router];
const first = (t, r) => t.experts ? t.experts[r.at] : -1;
function paint(t) {
    const r = router(), e = r ? first(t, r) : -1;
    for (const span of t.spans) {
        span.style.background = e >= 0 && $('colored').checked ? color(e, 0.3) : '';
        span.classList.toggle('chosen', state.chosen >= 0 && r && t.experts && t.experts.slice(r.at, r.at + r.chosen).includes(state.chosen));
    }
}
function layer_show() {
    state.chosen = -1;
    $('bars').replaceChildren(...Array.from({ length: router().experts }, (_, e) => {
        const button = node('button', { type: 'button', 'aria-pressed': 'false' }, node('i'), node('b', {}, router().experts <= 32 ? String(e) : ''));
        button.style.setProperty('--e', color(e, 0.8));
        button.onclick = () => choose(state.chosen === e ? -1 : e);
        return button;
    }));
    choose(-1);
    loads_show();
}
function choose(e) {
    state.chosen = e;
    [...$('bars').children].forEach((b, i) => b.setAttribute('aria-pressed', String(i === e)));
    $('text').classList.toggle('focus', e >= 0);
    state.tokens.forEach(paint);
}
function loads_show() {
    const r = router();
    if (!r) return;
    const load = state.loads[state.router] || [], all = load.reduce((a, b) => a + b, 0), mean = all / r.experts;
    const most = Math.max(2 * mean, ...load) || 1;
    [...$('bars').children].forEach((b, e) => {
        const share = all ? 100 * load[e] / all : 0;
        b.firstChild.style.height = 100 * (load[e] || 0) / most + '%';
        b.title = 'expert ' + e + ': ' + share.toFixed(1) + ' %';
        b.setAttribute('aria-label', b.title);
    });
    $('loads').textContent = !all ? 'How often each expert is chosen. An equal share is ' + (100 / r.experts).toFixed(1) + ' %.'
        : 'Expert ' + load.indexOf(Math.max(...load)) + ' has most: ' + (100 * Math.max(...load) / all).toFixed(1) + ' %; an equal share is ' +
          (100 / r.experts).toFixed(1) + ' %. Each token has ' + r.chosen + ' of ' + r.experts + ' experts. Press a bar to see its tokens.';
}
function token_add(event) {
    let t = event.token == null ? null : state.last;
    if (!t || t.number !== event.token) {
        t = state.last = { number: event.token, experts: event.experts, spans: [] };
        state.tokens.push(t);
        if (event.experts) state.model.routers.forEach((r, i) => {
            const load = state.loads[i] || (state.loads[i] = new Array(r.experts).fill(0));
            for (let k = 0; k < r.chosen; k++) load[event.experts[r.at + k]]++;
        });
    }
    const span = node('span', { class: null }, event.text);
    span.token = t;
    t.spans.push(span);
    state.target.append(span);
    paint(t);
}
function tip_show(event) {
    const t = event.target.token;
    $('tip').hidden = !t || !t.experts;
    if ($('tip').hidden) return;
    const lines = state.model.routers.map(r => 'layer ' + r.layer + ' ' + r.name + ': ' + t.experts.slice(r.at, r.at + r.chosen).join(', '));
    $('tip').textContent = JSON.stringify(t.spans.map(s => s.textContent).join('')) + '\n' + (lines.length > 16
        ? lines.slice(0, 8).concat('…', lines.slice(-7)) : lines).join('\n');
    const box = $('tip').getBoundingClientRect();
    $('tip').style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4)) + 'px';
    $('tip').style.top = (event.clientY + 20 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 20) + 'px';
}

// ---- a text

// Server-sent events: data, and comments about the queue.
async function* events_of(answer) {
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    let rest = '';
    for (;;) {
        const { done, value } = await reader.read();
        rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
        const lines = rest.split('\n');
        rest = lines.pop();
        for (const line of lines) {
            if (line.startsWith(': queue ')) yield { queue: Number(line.slice(8)) };
            else if (line.startsWith('data: {')) yield JSON.parse(line.slice(6));
        }
        if (done) return;
    }
}
// A chat is a list of messages; the page asks for the answer to all of them.
const chats = () => $('mode-chat').checked;
function mode_show() {
    const chat = chats();
    document.querySelector('main').classList.toggle('chat', chat);
    $('go').textContent = chat ? 'Send' : 'Generate';
    $('go').title = chat ? 'Enter' : 'Ctrl+Enter';
    $('prompt-label').textContent = chat ? 'Message' : 'Prompt';
    $('prompt').rows = chat ? 2 : 4;
    $('prompt').placeholder = chat ? 'Enter sends, Shift+Enter begins a new line.' : 'What the text begins with. Empty: the model begins.';
    $('on').hidden = chat;
    $('new').hidden = $('system').hidden = !chat;
    chat_new();
}
function chat_new() {
    stop();
    state.messages = [];
    text_new();
    $('state').textContent = $('trouble').textContent = '';
    busy(false);
}
function text_new() {
    state.tokens = [];
    state.loads = [];
    state.target = $('text');
    $('text').replaceChildren();
    if (state.model) loads_show();
}
function question_add() {
    const text = $('prompt').value.trim();
    if (!text) return null;
    state.messages.push({ role: 'user', content: text });
    state.target = node('div', { class: 'answer' });
    $('text').append(node('div', { class: 'user' }, text), state.target);
    $('prompt').value = '';
    const system = $('system-text').value.trim();
    return system ? [{ role: 'system', content: system }, ...state.messages] : state.messages;
}
function answer_add(text) {                             // nothing was said: the question may be asked again
    if (text) { state.messages.push({ role: 'assistant', content: text }); return; }
    const question = state.messages.pop();
    state.target.previousSibling.remove();
    state.target.remove();
    if (!$('prompt').value) $('prompt').value = question.content;
}
const says = { stop: 'ended', length: 'reached its length', context: 'the context is full', time: 'the time is over' };
function busy(is) {
    $('go').disabled = is;
    $('stop').disabled = !is;
    $('on').disabled = $('copy').disabled = is || !$('text').textContent;
    $('text').classList.toggle('busy', is);
    if (!is) state.abort = null;
}
function take(event, run) {
    if ('queue' in event) $('state').textContent = event.queue ? event.queue + ' before this one' : 'next in the queue';
    if ('seed' in event) {
        run.head = 'seed ' + event.seed;
        if (event.dropped) $('trouble').textContent = (chats() ? 'The chat' : 'The prompt') + ' is longer than the context: its first ' +
            count(event.dropped) + ' tokens were left out.';
    }
    for (const c of event.choices || []) {
        const text = c.delta ? c.delta.content : c.text;
        if (text) {
            token_add({ text, token: run.tokens++, experts: (c.experts || [])[0] });
            run.times.push(performance.now());
        }
        while (run.times.length > 2 && run.times[run.times.length - 1] - run.times[0] > 2000) run.times.shift();
        if (c.ended) run.end = c.ended;
    }
    if (event.usage) {
        const n = event.usage.prompt_tokens;
        $('state').textContent = run.head + ', prompt of ' + count(n) + (n === 1 ? ' token' : ' tokens') + ', ' +
            count(event.usage.completion_tokens) + ' tokens, ' + says[run.end];
    }
}
function draw(run) {                                    // what changes with every token, once for each picture
    if (run.drawn) return;
    run.drawn = true;
    requestAnimationFrame(() => {
        run.drawn = false;
        const n = run.times.length - 1, follows = innerHeight + scrollY > document.documentElement.scrollHeight - 80;
        loads_show();
        if (!run.end && n > 0 && state.abort === run.abort)
            $('state').textContent = run.head + ', ' + count(1000 * n / (run.times[n] - run.times[0])) + ' tokens/s';
        if (follows && !run.end) scrollTo(0, document.documentElement.scrollHeight);
    });
}
async function generate(event) {
    if (event) event.preventDefault();
    if (state.abort || !state.model) return;
    const body = options_read();
    if (!body) return;
    const chat = chats();
    if (chat) body.messages = question_add();
    else { body.prompt = $('prompt').value; text_new(); $('text').append(node('span', { class: 'prompt' }, body.prompt)); }
    Object.assign(body, { stream: true, stream_options: { include_usage: true }, truncation: 'auto' });
    if (state.model.routers.length) body.experts = true;
    if (chat && !body.messages) return;
    const run = { times: [], tokens: 0, head: '', abort: state.abort = new AbortController() }, target = state.target, messages = state.messages;
    state.last = null;
    $('trouble').textContent = '';
    $('state').textContent = 'asking';
    $('tip').hidden = true;
    busy(true);
    try {
        for await (const e of events_of(await ask(chat ? 'v1/chat/completions' : 'v1/completions', body, run.abort.signal))) { take(e, run); draw(run); }
        if (!run.end) throw new Error('The server ended the connection.');
    } catch (e) {
        if (e.name === 'AbortError') $('state').textContent = run.head + ', stopped';
        else { $('trouble').textContent = e.message; $('state').textContent = ''; }
    }
    if (messages !== state.messages || state.abort !== run.abort) return;       // a new chat has begun meanwhile
    busy(false);
    if (chat) answer_add(target.textContent);
}
function stop() { if (state.abort) state.abort.abort(); }

// ---- light and dark, keys

function set_theme() {
    const dark = state.theme ? state.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}
set_theme();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', set_theme);
$('theme').onclick = () => { state.theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'; set_theme(); };
$('ask').onsubmit = generate;
$('stop').onclick = stop;
$('on').onclick = () => { $('prompt').value = $('text').textContent; generate(); };
$('copy').onclick = async () => {
    try { await navigator.clipboard.writeText($('text').textContent); $('state').textContent = 'copied'; }
    catch (e) { getSelection().selectAllChildren($('text')); $('state').textContent = 'selected: copy it with Ctrl+C'; }
};
$('layer').onchange = () => { state.router = Number($('layer').value); layer_show(); };
$('colored').onchange = () => state.tokens.forEach(paint);
$('text').onpointermove = tip_show;
$('text').onpointerleave = () => { $('tip').hidden = true; };
addEventListener('keydown', e => {
    if (e.key === 'Escape') { if (state.abort) stop(); else choose(-1); }
    const sends = chats() && e.target === $('prompt') && !e.shiftKey && !e.isComposing;
    if (e.key === 'Enter' && (e.ctrlKey || e.metaKey || sends)) generate(e);
});
$('mode-chat').onchange = $('mode-text').onchange = mode_show;
$('new').onclick = () => { chat_new(); $('prompt').focus(); };
if (innerWidth < 800) $('sampling').open = false;

(async () => {
    try {
        const model = (await (await ask('v1/models')).json()).data[0], m = state.model = model.smoe;
        m.options = m.settings.concat({ name: 'seed', whole: true, low: 0, high: 9e15 }, { name: 'stop' });
        document.title = model.id + ' · smoe.c';
        $('model').textContent = model.id + ' (' + m.descriptor + '), ' + short(m.parameters) + ' parameters' + (m.active < m.parameters ? ', ' + short(m.active) + ' active' : '') +
            ', context ' + m.context + ', ' + m.device;
        $('prompt').value = m.prompt;
        options_make(m.options);
        layers_make(m.routers);
        $('modes').hidden = !m.chat;
        $('mode-chat').checked = m.chat && !m.prompt;
        mode_show();
        $('prompt').focus();
    } catch (e) { $('trouble').textContent = e.message; $('go').disabled = true; }
})();
})();
