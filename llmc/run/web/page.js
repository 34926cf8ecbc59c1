// page.js: the page of infer_moe -m web. It asks the server in OpenAI's forms (docs/api.md) and shows what comes. Conversations stay in this
// browser. What a model or a user wrote becomes text nodes, never markup.
'use strict';
(function () {
const $ = id => document.getElementById(id);
const secret = location.hash.slice(1);
const KEPT = 'smoe.c';
const state = {
    model: null, routers: [], settings: [],             // the model; its routers, each with the offset of its experts in a token's list
    talks: [], here: null,                              // conversations, newest first; the one that is shown
    run: null, follows: true,                           // what is being generated; is the end kept in view?
    notice: 0,                                          // until when the line below keeps what it says
    color: 'none', kind: 'all', focus: null,            // of tokens; focus: {router, expert} whose tokens are shown
    at: null, theme: null, plain: false, given: {},     // at: the token that is shown, {message, number}; given: settings that the user changed
};

// ---- small things

function node(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const k in attributes) if (attributes[k] != null) e.setAttribute(k, attributes[k]);
    e.append(...children);
    return e;
}
function icon(name) {
    const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
    use.setAttribute('href', '#i-' + name);
    svg.append(use);
    return svg;
}
function button(name, title, act, label) {
    const b = node('button', { type: 'button', title, 'aria-label': title, 'data-act': name }, icon(name));
    if (label) b.append(' ' + label);
    b.onclick = act;
    return b;
}
const count = x => Math.round(x).toString().replace(/\B(?=(\d{3})+$)/g, ',');
const short = x => x >= 1e9 ? (x / 1e9).toFixed(1) + ' billion' : x >= 1e6 ? (x / 1e6).toFixed(1) + ' million' : count(x);
const some = (n, what) => count(n) + ' ' + what + (n === 1 ? '' : 's');
const percent = p => p >= 0.9995 ? '100 %' : p >= 0.1 ? (100 * p).toFixed(0) + ' %' : p >= 0.001 ? (100 * p).toFixed(1) + ' %' : '< 0.1 %';
// Neighbours in number are far apart in hue; after a turn or so the lightness changes.
const color = (e, alpha) => 'hsl(' + (e * 137.5 + 10) % 360 + ' 75% ' + [52, 40, 64][Math.floor(e / 12) % 3] + '% / ' + alpha + ')';
// In plain words what goes on. notice: it is to be read, so what only counts waits for three seconds.
function say(text, bad) { state.notice = 0; say_show(text, bad); }
function notice(text) { state.notice = performance.now() + 3000; say_show(text); }
function say_show(text, bad) {
    $('state').textContent = text;
    $('state').classList.toggle('bad', Boolean(bad));
}
async function copy(text) {
    try { await navigator.clipboard.writeText(text); } catch (e) {          // only addresses of this machine and https have a clipboard
        const area = node('textarea', {});
        area.value = text;
        document.body.append(area);
        area.select();
        const done = document.execCommand('copy');
        area.remove();
        if (!done) { say('This browser does not let the page copy.', true); return; }
    }
    notice('Copied.');
}

// ---- what stays in the browser: texts, without what is known of their tokens

function keep() {
    try {
        localStorage.setItem(KEPT, JSON.stringify({ talks: state.talks.filter(t => t.messages.length).map(t => ({ ...t, messages: t.messages.map(m =>
            ({ role: m.role, text: m.text, info: m.info })) })), color: state.color, theme: state.theme, plain: state.plain, given: state.given }));
    } catch (e) { say('This conversation is not kept: the storage of this browser is full or switched off. Deleting old ones helps.', true); }
}
function kept() {
    let all = {};
    try { all = JSON.parse(localStorage.getItem(KEPT)) || {}; } catch (e) { /* there is nothing */ }
    const is = t => t && Array.isArray(t.messages) && t.messages.every(m => m && (m.role === 'user' || m.role === 'assistant') && typeof m.text === 'string');
    return { ...all, talks: Array.isArray(all.talks) ? all.talks.filter(is) : [] };
}
function restore() {
    const all = kept();
    state.talks = all.talks;
    for (const k of ['color', 'theme', 'plain', 'given']) if (all[k] && (k === 'theme' || typeof all[k] === typeof state[k])) state[k] = all[k];
}
// Another window of this page has changed them: its conversations are taken, but for the one that is open here.
function restore_talks() {
    state.talks = [state.here, ...kept().talks.filter(t => t.id !== state.here.id)];
    list_show();
}

// ---- Markdown: headings, lists, quotes, rules, fenced code; bold, italics and code in a line. Every piece of text that it shows is a range of
// the source, so that put(parent, from, to) can make tokens of it.

function lines_of(s) {
    const lines = [];
    for (let at = 0; at <= s.length;) {
        const end = s.indexOf('\n', at), to = end < 0 ? s.length : end;
        lines.push({ from: at, to });
        at = to + 1;
    }
    return lines;
}
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/, HEADING = /^ {0,3}(#{1,6})\s+/, RULE = /^ {0,3}([-*_])( *\1){2,} *$/, QUOTE = /^ {0,3}> ?/,
    ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
function blocks_of(s, lines, depth = 0) {
    const text = l => s.slice(l.from, l.to), blocks = [];
    const begins = l => [FENCE, HEADING, RULE, QUOTE, ITEM].some(r => r.test(text(l)));
    for (let i = 0, m; i < lines.length;) {
        const first = i, line = text(lines[i]), add = b => blocks.push({ from: lines[first].from, to: lines[i - 1].to, ...b });
        if (!line.trim()) { i++; continue; }
        if (depth > 8) { i = lines.length; add({ type: 'paragraph', lines: lines.slice(first) }); break; }
        if ((m = FENCE.exec(line))) {
            const inner = [], indent = line.search(/\S/);
            for (i++; i < lines.length && !(text(lines[i]).trim().startsWith(m[1]) && !text(lines[i]).trim().replaceAll(m[1][0], '')); i++) {
                const drop = Math.min(indent, Math.max(0, text(lines[i]).search(/\S|$/)));
                inner.push({ from: lines[i].from + drop, to: lines[i].to });
            }
            if (i < lines.length) i++;
            add({ type: 'code', lines: inner, language: m[2] });
        } else if ((m = HEADING.exec(line))) { i++; add({ type: 'heading', level: m[1].length, lines: [{ from: lines[first].from + m[0].length, to: lines[first].to }] }); }
        else if (RULE.test(line)) { i++; add({ type: 'rule' }); }
        else if (QUOTE.test(line)) {
            const inner = [];
            for (; i < lines.length && (m = QUOTE.exec(text(lines[i]))); i++) inner.push({ from: lines[i].from + m[0].length, to: lines[i].to });
            add({ type: 'quote', blocks: blocks_of(s, inner, depth + 1) });
        } else if ((m = ITEM.exec(line))) {
            const ordered = m[2].length > 1, items = [], start = parseInt(m[2], 10);
            while (i < lines.length && (m = ITEM.exec(text(lines[i]))) && ordered === m[2].length > 1 && !RULE.test(text(lines[i]))) {
                const indent = m[0].length, inner = [{ from: lines[i].from + indent, to: lines[i].to }];
                for (i++; i < lines.length; i++) {
                    const t = text(lines[i]), white = t.search(/\S/);
                    if (white >= Math.min(indent, 2 + m[1].length) && white > 0) inner.push({ from: lines[i].from + Math.min(white, indent), to: lines[i].to });
                    else if (white < 0 && i + 1 < lines.length && (text(lines[i + 1]).search(/\S/) >= 2 || ITEM.test(text(lines[i + 1])))) inner.push({ from: lines[i].to, to: lines[i].to });
                    else if (white >= 0 && text(lines[i - 1]).trim() && !begins(lines[i])) inner.push(lines[i]);
                    else break;
                }
                items.push(blocks_of(s, inner, depth + 1));
            }
            add({ type: 'list', ordered, start, items });
        } else {
            for (i++; i < lines.length && text(lines[i]).trim() && !begins(lines[i]); i++);
            add({ type: 'paragraph', lines: lines.slice(first, i) });
        }
    }
    return blocks;
}
// Where a run of marks that began before `at` ends; -1: nowhere.
function closing(s, mark, at, to) {
    const word = /[\p{L}\p{N}]/u;
    to = Math.min(to, at + 1000);
    for (let i = at; (i = s.indexOf(mark, i)) >= 0 && i + mark.length <= to; i++) {
        const before = s[i - 1], after = i + mark.length < to ? s[i + mark.length] : '';
        if (i === at || /\s/.test(before) || before === '\\') continue;
        if (mark.length === 1 && (after === mark || before === mark)) { i++; continue; }
        if (mark[0] === '_' && word.test(after)) continue;
        return i;
    }
    return -1;
}
function inline(parent, s, from, to, put) {
    let start = from;
    const flush = end => { if (end > start) put(parent, start, end); };
    for (let i = from; i < to;) {
        const c = s[i];
        if (c === '\\' && i + 1 < to && /[!-\/:-@[-`{-~]/.test(s[i + 1])) { flush(i); start = i + 1; i += 2; continue; }
        if (c === '`') {
            const run = /^`+/.exec(s.slice(i, to))[0], end = s.indexOf(run, i + run.length);
            if (end > 0 && end + run.length <= to && end > i + run.length) {
                flush(i);
                const code = node('code', {});
                put(code, i + run.length, end);
                parent.append(code);
                start = i = end + run.length;
                continue;
            }
            i += run.length;
            continue;
        }
        if (c === '*' || c === '_') {
            const mark = /^(\*{1,3}|_{1,3})/.exec(s.slice(i, i + 3))[0], inner = i + mark.length, opens = inner < to && !/\s/.test(s[inner]) && s[inner] !== c &&
                (c === '*' || i === from || !/[\p{L}\p{N}]/u.test(s[i - 1]));
            const end = opens ? closing(s, mark, inner, to) : -1;
            if (end > inner) {
                flush(i);
                const e = node(mark.length > 1 ? 'strong' : 'em', {}), em = mark.length > 2 ? node('em', {}) : null;
                if (em) e.append(em);
                inline(em || e, s, inner, end, put);
                parent.append(e);
                start = i = end + mark.length;
                continue;
            }
            i += mark.length;
            continue;
        }
        i++;
    }
    flush(to);
}
function lines_show(parent, lines, s, put) {
    lines.forEach((l, i) => {
        inline(parent, s, l.from, l.to, put);
        if (i + 1 < lines.length && l.to < s.length) put(parent, l.to, l.to + 1);
    });
}
function block_show(b, s, put) {
    const of = (tag, blocks) => node(tag, {}, ...blocks.map(x => block_show(x, s, put)));
    if (b.type === 'rule') return node('hr', {});
    if (b.type === 'quote') return of('blockquote', b.blocks);
    if (b.type === 'list') {
        const list = node(b.ordered ? 'ol' : 'ul', b.ordered && b.start !== 1 ? { start: b.start } : {});
        for (const item of b.items) {
            const li = node('li', {});
            item.forEach((x, i) => x.type === 'paragraph' && !i ? lines_show(li, x.lines, s, put) : li.append(block_show(x, s, put)));
            list.append(li);
        }
        return list;
    }
    if (b.type === 'code') {
        const code = node('code', {}), bar = node('div', {}, node('span', {}, b.language));
        b.lines.forEach((l, i) => put(code, l.from, i + 1 < b.lines.length ? Math.min(l.to + 1, s.length) : l.to));
        bar.append(button('copy', 'Copy the code', () => copy(b.lines.map(l => s.slice(l.from, l.to)).join('\n') + '\n'), 'Copy'));
        return node('div', { class: 'code' }, bar, node('pre', {}, code));
    }
    const e = node(b.type === 'heading' ? ['h2', 'h3', 'h4', 'h4', 'h4', 'h4'][b.level - 1] : 'p', {});
    lines_show(e, b.lines, s, put);
    return e;
}

// ---- tokens: {from, to, log, best: [[text, log, bytes]...], experts, kind}, ranges of a message's text

const MARKS = { words: /[\p{L}\p{M}]/u, digits: /\p{N}/u, code: /[{}[\]<>=+*\/\\|&^%$#@~_`]/ };
function kind_of(text, in_code) {
    if (text && !text.trim()) return 'spaces';
    if (in_code || MARKS.code.test(text)) return 'code';
    return MARKS.words.test(text) ? 'words' : MARKS.digits.test(text) ? 'digits' : 'punctuation';
}
const KINDS = [['all', 'All'], ['words', 'Words'], ['digits', 'Digits'], ['punctuation', 'Punctuation'], ['spaces', 'Spaces'], ['code', 'Code']];
const chosen = (t, r) => t.experts ? t.experts.slice(r.at, r.at + r.chosen) : [];
function paint(span, t) {
    const r = state.routers[state.color];
    span.style.background = r && t.experts && t.experts.length ? color(t.experts[r.at], 0.28)
        : state.color === 'odds' && t.log != null ? 'hsl(25 90% 50% / ' + Math.min(0.55, -t.log / 9).toFixed(2) + ')' : '';
    const f = state.focus;
    span.classList.toggle('chosen', Boolean(f) && chosen(t, state.routers[f.router]).includes(f.expert));
}
function each_token(act) {
    for (const m of state.here.messages) if (m.node) for (const span of m.node.querySelectorAll('.token')) act(span, m.tokens[span.dataset.n], m);
}
function paint_all() {
    $('messages').classList.toggle('focus', Boolean(state.focus));
    each_token(paint);
}
// Puts a range of a message's text into parent, cut into tokens where they are known.
function putter(m) {
    return (parent, from, to) => {
        const s = m.text, tokens = m.tokens || [], in_code = Boolean(parent.closest('code'));
        let low = 0, high = tokens.length;
        while (low < high) { const mid = (low + high) >> 1; if (tokens[mid].to <= from) low = mid + 1; else high = mid; }
        for (let n = low; from < to; n++) {
            const t = tokens[n];
            if (!t) { parent.append(s.slice(from, to)); return; }
            if (t.from > from) { const end = Math.min(t.from, to); parent.append(s.slice(from, end)); from = end; }
            const end = Math.min(t.to, to);
            if (end <= from) continue;
            if (in_code) t.kind = kind_of(s.slice(t.from, t.to), true);
            const span = node('span', { class: 'token', 'data-n': n }, s.slice(from, end));
            if (state.at && state.at.message === m && state.at.number === n) span.classList.add('here');
            paint(span, t);
            parent.append(span);
            from = end;
        }
    };
}

// ---- messages on the page

function body_draw(m) {
    const plain = state.here.kind === 'text' || m.role === 'user' || state.plain, body = m.body, put = putter(m);
    body.classList.toggle('plain', plain);
    if (plain) {
        if (!state.run || state.run.message !== m || !m.shown) { body.replaceChildren(); m.shown = 0; }
        put(body, m.shown, m.text.length);
        m.shown = m.text.length;
        return;
    }
    // blocks that are as they were stay: a long answer grows at its end only
    const old = m.drawn || [], blocks = blocks_of(m.text, lines_of(m.text));
    if (!m.drawn) body.replaceChildren();
    m.drawn = blocks.map((b, i) => {
        const source = b.type + ' ' + m.text.slice(b.from, b.to), is_last = i === blocks.length - 1;
        if (old[i] && old[i].from === b.from && old[i].source === source && !old[i].is_last && !is_last) return old[i];
        const shown = block_show(b, m.text, put);
        if (old[i]) old[i].shown.replaceWith(shown); else body.append(shown);
        return { from: b.from, source, shown, is_last };
    });
    for (const x of old.slice(blocks.length)) x.shown.remove();
}
const ended = { length: 'reached its longest length (Settings)', context: 'the model’s context is full', time: 'its time was over', stopped: 'stopped' };
function info_text(m) {
    const i = m.info || {}, parts = [];
    if (i.tokens) parts.push(some(i.tokens, 'token'));
    if (i.tokens > 1 && i.seconds > 0.1) parts.push(count((i.tokens - 1) / i.seconds) + ' per second');
    if (ended[i.ended]) parts.push(ended[i.ended]);
    return parts.join(' · ');
}
function actions_draw(m) {
    const talk = state.here, is_last = talk.messages[talk.messages.length - 1] === m, busy = state.run && state.run.message === m, to = m.actions;
    to.replaceChildren();
    if (busy) return;
    if (talk.kind === 'text') {
        if (!is_last) return;
        to.append(button('again', 'Write the last part again', () => again(m), 'Again'), button('copy', 'Copy the text', () => copy(prompt_of(talk))),
                  button('edit', 'Edit the text: it comes back into the field below', () => edit_text(talk)));
    } else if (m.role === 'user') {
        to.append(button('edit', 'Edit and send again', () => edit(m)), button('copy', 'Copy', () => copy(m.text)));
        if (is_last && !state.run) to.append(button('again', 'Send again', () => again(m)));
    }
    else to.append(button('copy', 'Copy the answer', () => copy(m.text)), button('again', 'Answer again', () => again(m)));
    if (m.role === 'assistant') to.append(node('span', { class: 'info', title: m.info && m.info.seed != null ? 'seed ' + m.info.seed : null }, info_text(m)));
}
function message_show(m) {
    m.body = node('div', { class: 'body', dir: 'auto' });
    m.actions = node('div', { class: 'actions' });
    m.drawn = null;
    m.shown = 0;
    m.node = node('article', { class: 'message ' + m.role, 'aria-label': m.role === 'user' ? 'You' : 'Model' }, m.body, m.actions);
    $('messages').append(m.node);
    body_draw(m);
    m.body.classList.toggle('busy', Boolean(state.run && state.run.message === m));
    actions_draw(m);
}
function talk_show() {
    const talk = state.here, text = talk.kind === 'text';
    state.at = null;
    $('messages').className = text ? 'text' : 'chat';
    $('messages').replaceChildren();
    for (const m of talk.messages) message_show(m);
    if (!talk.messages.length)
        $('messages').append(node('div', { class: 'hello' }, node('h2', {}, text ? 'Begin a text' : 'Ask something'), text
            ? 'The model continues what you write. Click any word of it to see what else it could have been.'
            : 'Click any word of an answer to see what else it could have been, and which experts read it.'));
    const touch = matchMedia('(pointer: coarse)').matches;
    $('prompt').placeholder = text ? touch ? 'Write on, or let the model continue' : 'Write on; Enter lets the model continue, Shift+Enter begins a line'
        : touch ? 'Message' : 'Message (Enter sends, Shift+Enter begins a line)';
    $('prompt').setAttribute('aria-label', text ? 'Text' : 'Message');
    $('title').textContent = title_of(talk);
    $('system').value = talk.system || '';
    $('system').hidden = $('system-label').hidden = text;
    follow(true);
    list_show();
    paint_all();
    token_show();
    loads_show();
    send_show();
}
const title_of = talk => talk.title || (talk.messages.length ? talk.messages[0].text.trim().replace(/\s+/g, ' ').slice(0, 60) : '') ||
    (talk.kind === 'text' ? 'New text' : 'New chat');
function follow(now) {
    if (now) state.follows = true;
    if (state.follows) $('talk').scrollTop = $('talk').scrollHeight;
    $('down').hidden = state.follows;
}
function trouble_show(text) {
    $('messages').querySelectorAll('.trouble').forEach(e => e.remove());
    if (!text) return;
    const box = node('div', { class: 'trouble', role: 'alert' }, node('span', {}, text)), talk = state.here;
    const retry = node('button', { type: 'button' }, 'Try again');
    retry.onclick = () => { trouble_show(''); if (state.here === talk) ask(talk); };
    if (talk.messages.length) box.append(retry);
    $('messages').append(box);
    follow(true);
}

// ---- conversations

function begin(kind) {
    const fresh = state.talks.find(t => !t.messages.length && t.kind === kind) || { id: Date.now() + Math.random(), kind, title: '', system: '', messages: [] };
    state.talks = [fresh, ...state.talks.filter(t => t !== fresh)];
    open(fresh);
}
function open(talk) {
    if (state.run && state.here !== talk) stop();
    state.here = talk;
    state.focus = null;
    trouble_show('');
    say('');
    talk_show();
    if (innerWidth < 800) side(false);
    prompt_focus();
}
function list_show() {
    $('list').replaceChildren(...state.talks.filter(t => t.messages.length || t === state.here).map(t => {
        const name = node('button', { type: 'button', class: 'name', title: title_of(t), 'aria-current': t === state.here ? 'true' : null }, node('span', {}, title_of(t)));
        const li = node('li', { class: t === state.here ? 'here' : null }, name);
        name.onclick = () => open(t);
        const tool = (what, title, act) => { const b = button(what, title, act); b.classList.add('tool'); return b; };
        if (t.messages.length) li.append(tool('edit', 'Rename', () => rename(t, li)), tool('delete', 'Delete', () => forget(t)));
        return li;
    }));
}
function rename(t, li) {
    const input = node('input', { 'aria-label': 'Name', maxlength: 100 });
    input.value = title_of(t);
    const done = keeps => {
        input.onblur = null;
        if (keeps) t.title = input.value.trim();
        keep();
        list_show();
        if (t === state.here) $('title').textContent = title_of(t);
    };
    input.onkeydown = e => { e.stopPropagation(); if (e.key === 'Enter' || e.key === 'Escape') done(e.key === 'Enter'); };
    input.onblur = () => done(true);
    li.replaceChildren(input);
    input.select();
}
function forget(t) {
    const at = state.talks.indexOf(t), shown = t === state.here;
    if (shown) stop();
    state.talks.splice(at, 1);
    keep();
    if (shown) begin(t.kind); else list_show();
    const undo = node('button', { type: 'button' }, 'Undo');
    undo.onclick = () => { state.talks.splice(Math.min(at, state.talks.length), 0, t); keep(); open(t); };
    say('Deleted “' + title_of(t) + '”. ');
    $('state').append(undo);
}
function side(is_open) {
    document.body.classList.toggle('narrow', !is_open);
    $('menu').setAttribute('aria-expanded', String(is_open));
}

// ---- asking

const prompt_focus = () => { if (!matchMedia('(pointer: coarse)').matches) $('prompt').focus(); };     // a phone would show its keyboard
const prompt_of = talk => talk.messages.map(m => m.text).join('');
async function request(path, body, signal) {
    const headers = secret ? { Authorization: 'Bearer ' + secret } : {};
    if (body) headers['Content-Type'] = 'application/json';
    let answer;
    try { answer = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal }); }
    catch (e) { throw e.name === 'AbortError' ? e : new Error('The server does not answer. Is infer_moe still running?'); }
    if (answer.ok) return answer;
    const why = await answer.json().catch(() => ({}));
    throw new Error(answer.status === 401 ? 'Open this page by the link that infer_moe printed: it ends with the key.'
        : why.error && why.error.message || 'The server answered with status ' + answer.status + '.');
}
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
// The tokens of an event, in either form: {bytes, log, best, experts}.
function tokens_of(c) {
    const o = c.logprobs, bytes_of = name => name.startsWith('bytes:\\x') ? Uint8Array.from(name.slice(6).split('\\x').slice(1), x => parseInt(x, 16))
        : new TextEncoder().encode(name);
    if (!o) return [];
    if (o.content) return o.content.map((t, i) => ({ bytes: Uint8Array.from(t.bytes || []), name: t.token, log: t.logprob, experts: (c.experts || [])[i],
        best: t.top_logprobs.map(b => [b.token, b.logprob, b.bytes]) }));
    return o.tokens.map((name, i) => ({ bytes: bytes_of(name), name, log: o.token_logprobs[i], experts: (c.experts || [])[i],
        best: Object.entries((o.top_logprobs || [])[i] || {}).map(([n, log]) => [n, log]).sort((a, b) => b[1] - a[1]).slice(0, 6) }));
}
function tokens_add(m, run, tokens) {
    for (const t of tokens) {
        const from = run.own.length;
        run.own += run.decoder.decode(t.bytes, { stream: true });
        m.tokens.push({ from, to: run.own.length, name: t.name, log: t.log, best: t.best, experts: t.experts });
    }
}
// The prompt of a text comes back with what is known of its tokens: they are dealt out to the messages.
function echo_take(talk, tokens) {
    const run = { own: '', decoder: new TextDecoder() }, all = { tokens: [] };
    tokens_add(all, run, tokens);
    let at = 0;
    for (const m of talk.messages.slice(0, -1)) {
        const end = at + m.text.length, own = all.tokens.filter(t => t.to > at && t.from < end);
        m.tokens = own.map(t => ({ ...t, from: Math.max(t.from - at, 0), to: Math.min(t.to, end) - at, kind: null }));
        at = end;
        if (m.body) body_draw(m);
    }
}
function settings_read() {
    const body = {};
    for (const o of state.settings) {
        const input = $('option-' + o.name);
        if (!input.checkValidity()) {
            panel('settings');
            input.focus();
            say(label_of(o.name) + ' must be ' + (o.whole ? 'a whole number' : 'a number') + ' from ' + o.low + ' to ' + o.high + '.', true);
            return null;
        }
        if (input.value.trim()) body[o.name] = Number(input.value);
    }
    const stops = $('option-stop').value.split('\n').filter(s => s).map(s => s.replace(/\\([nt\\])/g, (all, c) => ({ n: '\n', t: '\t', '\\': '\\' })[c]));
    if (stops.length) body.stop = stops;
    return body;
}
function body_of(talk) {
    const body = settings_read();
    if (!body) return null;
    Object.assign(body, { model: state.model.id, stream: true, stream_options: { include_usage: true }, truncation: 'auto' });
    if (state.routers.length) body.experts = true;
    if (talk.kind === 'chat') {
        const system = (talk.system || '').trim();
        body.messages = talk.messages.slice(0, -1).map(m => ({ role: m.role, content: m.text }));
        if (system) body.messages.unshift({ role: 'system', content: system });
        return Object.assign(body, { logprobs: true, top_logprobs: 6 });
    }
    body.prompt = prompt_of(talk);
    // what is known of a prompt costs a step for each of its tokens
    body.echo = body.prompt.length > 0 && new TextEncoder().encode(body.prompt).length < Math.min(2000, state.model.smoe.context - 1);
    return Object.assign(body, { logprobs: 6 });
}
function event_take(e, run) {
    const m = run.message, talk = run.talk;
    if ('queue' in e) say(e.queue ? some(e.queue, 'request') + ' before yours.' : 'Yours is next.');
    if (e.dropped && !run.dropped) run.dropped = e.dropped;
    if (e.control_tokens) run.controls = e.control_tokens;
    if (e.seed != null) m.info.seed = e.seed;
    for (const c of e.choices || []) {
        const text = (c.delta ? c.delta.content : c.text) || '', tokens = tokens_of(c);
        if (run.echo) {
            run.echo = false;
            if (text === run.prompt) echo_take(talk, tokens);
            continue;
        }
        if (text && !m.text) { run.first = performance.now(); say('Writing…'); }
        run.content += text;
        tokens_add(m, run, tokens);
        // of bytes that are no UTF-8 there are several readings: tokens must fit the text
        m.text = run.own.startsWith(run.content) || run.content.startsWith(run.own) ? run.content : run.own;
        run.tokens += tokens.length;
        if (c.ended) m.info.ended = c.ended;
    }
    if (e.usage) m.info.tokens = e.usage.completion_tokens;
}
function draw(run) {                                    // once for each picture
    if (run.drawn) return;
    run.drawn = true;
    requestAnimationFrame(() => {
        run.drawn = false;
        if (state.here !== run.talk || state.run !== run) return;
        body_draw(run.message);
        const seconds = (performance.now() - run.first) / 1000;
        if (run.first && seconds > 0.5 && performance.now() > state.notice) say('Writing: ' + some(run.tokens, 'token') + ', ' + count(run.tokens / seconds) + ' per second. Escape stops.');
        follow();
        if (performance.now() - run.loads > 500) { run.loads = performance.now(); loads_show(); }
    });
}
// The model answers the last message of the conversation.
async function ask(talk, again) {
    const m = { role: 'assistant', text: '', tokens: [], info: {} };
    talk.messages.push(m);
    const body = body_of(talk);
    if (!body) { talk.messages.pop(); return false; }
    const run = state.run = { talk, message: m, abort: new AbortController(), tokens: 0, own: '', content: '', decoder: new TextDecoder(), echo: body.echo, prompt: body.prompt,
        first: 0, loads: 0, again };
    state.talks = [talk, ...state.talks.filter(t => t !== talk)];
    if (state.here === talk) { trouble_show(''); message_show(m); talk.messages.slice(-3, -1).forEach(x => x.actions && actions_draw(x)); follow(true); }
    list_show();
    $('title').textContent = title_of(state.here);
    say('Asking…');
    send_show();
    let trouble = '';
    try {
        for await (const e of events_of(await request('v1/' + (talk.kind === 'chat' ? 'chat/' : '') + 'completions', body, run.abort.signal))) { event_take(e, run); draw(run); }
        if (!m.info.ended) throw new Error('The server ended the connection in the middle.');
    } catch (e) {
        m.info.ended = 'stopped';
        if (e.name !== 'AbortError') trouble = e.message;
    }
    answered(run, trouble);
    return true;
}
function answered(run, trouble) {
    const m = run.message, talk = run.talk, shown = state.here === talk;
    if (run.first) m.info.seconds = (performance.now() - run.first) / 1000;
    if (m.info.tokens == null) m.info.tokens = run.tokens;
    if (state.run === run) state.run = null;
    for (const t of m.tokens) { t.from = Math.min(t.from, m.text.length); t.to = Math.min(t.to, m.text.length); }
    const empty = !m.text && (trouble || m.info.ended === 'stopped');
    if (empty) { talk.messages.splice(talk.messages.indexOf(m), 1); if (m.node) m.node.remove(); }
    if (shown) {
        if (!empty) { m.body.classList.remove('busy'); body_draw(m); }
        talk.messages.forEach(x => x.actions && actions_draw(x));
        loads_show();
        follow();
        if (trouble) trouble_show(trouble);
        const cut = run.dropped ? ' The conversation is longer than the model’s context of ' + count(state.model.smoe.context) + ' tokens: its first ' + some(run.dropped, 'token') +
            (run.dropped === 1 ? ' was' : ' were') + ' left out.' : '';
        const spelt = run.controls ? ' Its messages spell out ' + some(run.controls, 'control token') + ' of the model.' : '';
        const seed = run.again && $('option-seed').value ? ' The seed in Settings is fixed, so the same question has the same answer.' : '';
        say(trouble ? '' : (m.info.ended === 'stopped' ? 'Stopped.' : m.text ? 'Done.' : 'The model ended at once, without a word.') + cut + spelt + seed);
    }
    send_show();
    keep();
}
function stop() { if (state.run) state.run.abort.abort(); }
async function again(m) {
    if (state.run) { notice('Stop this answer first (Escape), or wait.'); return; }
    const talk = state.here, at = talk.messages.indexOf(m), from = m.role === 'assistant' ? at : at + 1, old = talk.messages.splice(from);
    talk_show();
    if (!await ask(talk, true)) { talk.messages.push(...old); talk_show(); }
}
function edit(m) {
    if (state.run) { notice('Stop this answer first (Escape), or wait.'); return; }
    const area = node('textarea', { rows: Math.min(12, m.text.split('\n').length + 1), 'aria-label': 'Edit the message' });
    const send = node('button', { type: 'button' }, 'Send'), cancel = node('button', { type: 'button' }, 'Cancel'), talk = state.here;
    const end = () => { m.node.classList.remove('editing'); body_draw(m); actions_draw(m); prompt_focus(); };
    const done = () => {
        const text = area.value.trim(), at = talk.messages.indexOf(m);
        if (!text) { notice('An empty message cannot be sent.'); return; }
        talk.messages.splice(at, talk.messages.length, { role: 'user', text });
        talk_show();
        ask(talk);
    };
    area.value = m.text;
    area.onkeydown = e => {
        e.stopPropagation();
        if (e.key === 'Escape') end();
        if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); done(); }
    };
    send.onclick = done;
    cancel.onclick = end;
    m.node.classList.add('editing');
    m.body.replaceChildren(area);
    m.actions.replaceChildren(send, cancel);
    area.focus();
}
function edit_text(talk) {
    if (state.run) { notice('Stop this text first (Escape), or wait.'); return; }
    $('prompt').value = prompt_of(talk);
    talk.messages = [];
    talk_show();
    grow();
    prompt_focus();
}
function send(event) {
    if (event) event.preventDefault();
    if (!state.model) { say('There is no model to ask: reload the page when infer_moe runs.', true); return; }
    if (state.run) { notice('Still writing: stop this answer first (Escape), or wait for its end.'); return; }
    const talk = state.here, text = talk.kind === 'text' ? $('prompt').value : $('prompt').value.trim();
    if (!text && talk.kind === 'chat') { say('Write a message first.'); prompt_focus(); return; }
    if (!settings_read()) return;
    if (!talk.messages.length) $('messages').replaceChildren();
    const m = { role: 'user', text };
    if (text) { talk.messages.push(m); message_show(m); }
    $('prompt').value = '';
    grow();
    ask(talk);
}
function send_show() {
    const busy = Boolean(state.run), text = state.here && state.here.kind === 'text', title = busy ? 'Stop (Escape)' : text ? 'Continue (Enter)' : 'Send (Enter)';
    $('send-icon').setAttribute('href', busy ? '#i-stop' : '#i-send');
    $('send').title = title;
    $('send').setAttribute('aria-label', title);
    $('send').classList.toggle('stops', busy);
}
function grow() {
    $('prompt').style.height = 'auto';
    $('prompt').style.height = Math.min($('prompt').scrollHeight, innerHeight * 0.4) + 'px';
}

// ---- the panel: a token, experts, settings

function panel(name) {
    $('panel').hidden = !name;
    for (const x of ['token', 'experts', 'settings']) {
        $(x).hidden = x !== name;
        $('tab-' + x).setAttribute('aria-selected', String(x === name));
        if (x !== 'token') $('show-' + x).setAttribute('aria-pressed', String(x === name));
    }
    if (name !== 'experts' && state.focus) { state.focus = null; paint_all(); }
    if (name === 'experts') loads_show();
    follow();
}
const visible = s => s.replace(/ /g, '␣').replace(/\n/g, '⏎').replace(/\t/g, '⇥') || '(nothing)';
function token_choose(m, number) {
    state.at = { message: m, number };
    each_token((span, t, own) => span.classList.toggle('here', own === m && Number(span.dataset.n) === number));
    token_show();
    panel('token');
    const span = m.node.querySelector('.token.here');
    if (span) span.scrollIntoView({ block: 'nearest' });
}
function token_move(step) {
    const all = [];
    each_token((span, t, m) => { if (!all.length || all[all.length - 1][1] !== Number(span.dataset.n) || all[all.length - 1][0] !== m) all.push([m, Number(span.dataset.n)]); });
    const at = all.findIndex(([m, n]) => state.at && m === state.at.message && n === state.at.number) + step;
    if (all[at]) token_choose(...all[at]);
}
function token_show() {
    const to = $('token'), at = state.at, t = at && at.message.tokens[at.number];
    to.replaceChildren();
    if (!t) {
        to.append(node('p', { class: 'dim' }, 'Click a word of an answer to see its probability, what else could have been there, and the experts that read it. ← and → go on to the next.'),
            node('p', { class: 'dim' }, 'Answers of earlier visits are kept as text only; of them nothing more is known.'));
        return;
    }
    const text = at.message.text.slice(t.from, t.to), p = t.log == null ? null : Math.exp(t.log);
    to.append(node('p', { class: 'word' }, text.trim() ? text : visible(text)), node('p', { class: 'dim' }, p == null ? 'The first token: nothing was before it.'
        : (at.message.role === 'user' ? 'To the model this token of yours had a probability of ' : 'The probability of this token was ') + percent(p) + '.'));
    if (t.best && t.best.length) {
        const odds = node('div', { class: 'odds' }), most = Math.exp(t.best[0][1]), list = t.best.slice(), is = b => b[1] === t.log && b[0] === t.name;
        if (!list.some(is)) list.push([t.name, t.log]);
        for (const b of list) {
            const bar = node('i', {});
            bar.style.width = 100 * Math.exp(b[1]) / Math.max(most, 1e-9) + '%';
            odds.append(node('span', { class: 'name' + (is(b) ? ' this' : ''), title: visible(b[0]) }, visible(b[0])), bar, node('b', {}, percent(Math.exp(b[1]))));
        }
        to.append(node('h2', {}, 'What could have been here'), odds);
    }
    if (!state.routers.length || !t.experts || !t.experts.length) return;
    const layers = node('div', { class: 'layers' });
    state.routers.forEach((r, i) => layers.append(node('span', {}, router_name(r)), node('div', {}, ...chosen(t, r).map(e => {
        const b = node('button', { type: 'button', title: 'Show all tokens that expert ' + e + ' of ' + router_name(r) + ' read' }, String(e));
        b.style.background = color(e, 0.3);
        b.onclick = () => { panel('experts'); focus(i, e); };
        return b;
    }))));
    to.append(node('h2', {}, 'Experts that read it'), layers);
}
const router_name = r => 'layer ' + r.layer + (state.routers.some(x => x.name !== r.name) ? ', ' + r.name : '');

// How often each expert of each layer reads tokens of a kind, of all tokens of this conversation.
function loads_of() {
    const loads = {};
    for (const [k] of KINDS) loads[k] = { tokens: 0, by: state.routers.map(r => new Array(r.experts).fill(0)) };
    for (const m of state.here.messages) for (const t of m.tokens || []) {
        if (!t.experts || !t.experts.length || t.to <= t.from) continue;
        if (!t.kind) t.kind = kind_of(m.text.slice(t.from, t.to));
        for (const k of ['all', t.kind]) {
            loads[k].tokens++;
            state.routers.forEach((r, i) => { for (let n = 0; n < r.chosen; n++) loads[k].by[i][t.experts[r.at + n]]++; });
        }
    }
    return loads;
}
function focus(router, expert) {
    const f = state.focus;
    state.focus = f && f.router === router && f.expert === expert ? null : { router, expert };
    paint_all();
    loads_show();
}
function map_make() {
    $('kinds').replaceChildren(...KINDS.map(([k, name]) => {
        const b = node('button', { type: 'button', 'data-kind': k }, name);
        b.onclick = () => { state.kind = k; loads_show(); };
        return b;
    }));
    $('map').replaceChildren(...state.routers.map((r, i) => node('div', {}, node('span', {}, (r.name === 'MLP' ? '' : 'att ') + r.layer),
        node('div', { class: 'cells' }, ...Array.from({ length: r.experts }, (_, e) => {
            const b = node('button', { type: 'button', 'data-tip': '' }, node('i', {}));
            b.onclick = () => focus(i, e);
            return b;
        })))));
}
function loads_show() {
    if (!state.routers.length || $('panel').hidden || $('experts').hidden || !state.here) return;
    const loads = loads_of(), own = loads[state.kind], name = KINDS.find(x => x[0] === state.kind)[1].toLowerCase(), what = state.kind === 'all' ? 'all tokens' : name;
    for (const b of $('kinds').children) b.setAttribute('aria-pressed', String(b.dataset.kind === state.kind));
    const scale = Math.max(...state.routers.map((r, i) => 2 * r.chosen / r.experts), 0.01);
    state.routers.forEach((r, i) => [...$('map').children[i].lastChild.children].forEach((b, e) => {
        const part = own.tokens ? own.by[i][e] / own.tokens : 0;
        b.firstChild.style.opacity = Math.min(1, part / scale).toFixed(3);
        b.dataset.tip = router_name(r) + ', expert ' + e + ': reads ' + percent(part) + ' of ' + what + '\nan even share is ' + percent(r.chosen / r.experts);
        b.setAttribute('aria-label', b.dataset.tip);
        b.classList.toggle('here', Boolean(state.focus && state.focus.router === i && state.focus.expert === e));
    }));
    const f = state.focus;
    $('map-says').textContent = f ? 'The text shows the tokens that expert ' + f.expert + ' of ' + router_name(state.routers[f.router]) + ' reads: ' +
        percent(own.tokens ? own.by[f.router][f.expert] / own.tokens : 0) + ' of ' + what + '. Press it again for all.'
        : own.tokens ? 'Each row is a layer, each field an expert: the fuller, the more of ' + what + ' in this conversation (' + count(own.tokens) + ') it reads. Press one to see its tokens.'
        : state.kind === 'all' ? 'Nothing was written yet in this visit: each row will be a layer, each field an expert.' : 'There are no ' + what + ' in this conversation yet.';
    specialists_show(loads);
}
function specialists_show(loads) {
    const lines = [];
    for (const [k, name] of KINDS.slice(1)) {
        let best = null;
        if (loads[k].tokens >= 5) state.routers.forEach((r, i) => loads[k].by[i].forEach((n, e) => {
            const part = n / loads[k].tokens, more = part - loads.all.by[i][e] / loads.all.tokens;
            if (!best || more > best.more) best = { more, part, all: loads.all.by[i][e] / loads.all.tokens, r, i, e };
        }));
        if (best && best.more > 0.1)
            lines.push(node('p', {}, node('b', {}, name + ': '), 'expert ' + best.e + ' of ' + router_name(best.r) + ' reads ' + percent(best.part) + ' of them, and ' +
                percent(best.all) + ' of all tokens.'));
    }
    $('specialists').replaceChildren(...lines.length ? [node('h2', {}, 'Specialists'), ...lines] : []);
}
function colors_make() {
    const select = $('color');
    select.append(node('option', { value: 'none' }, 'nothing'), node('option', { value: 'odds' }, 'probability (darker: less likely)'));
    state.routers.forEach((r, i) => select.append(node('option', { value: i }, 'expert of ' + router_name(r))));
    if (![...select.options].some(o => o.value === String(state.color))) state.color = 'none';
    select.value = state.color;
    select.onchange = () => { state.color = select.value; paint_all(); keep(); };
}

// ---- settings

const LABELS = { max_tokens: 'Longest answer, tokens', temperature: 'Temperature', top_p: 'Top p', min_p: 'Min p', top_k: 'Top k', seed: 'Seed',
    repetition_penalty: 'Repetition penalty', presence_penalty: 'Presence penalty', frequency_penalty: 'Frequency penalty' };
const label_of = name => LABELS[name] || name;
function settings_make() {
    for (const o of state.settings) {
        const input = node('input', { id: 'option-' + o.name, type: 'number', title: o.help, min: o.low, max: o.high, step: o.whole ? 1 : 'any',
            placeholder: o.name === 'seed' ? 'random' : null, inputmode: 'decimal' });
        $('options').append(node('label', { for: 'option-' + o.name, title: o.help }, label_of(o.name)), input);
        input.oninput = () => { if (input.checkValidity()) { state.given[o.name] = input.value; keep(); } };
    }
    $('option-stop').oninput = () => { state.given.stop = $('option-stop').value; keep(); };
    $('system').oninput = () => { state.here.system = $('system').value; keep(); };
    $('plain').checked = state.plain;
    $('plain').onchange = () => { state.plain = $('plain').checked; for (const m of state.here.messages) { m.drawn = null; m.shown = 0; body_draw(m); } keep(); };
    $('reset').onclick = () => { state.given = {}; settings_show(); keep(); say('The settings are those of the model again.'); };
    settings_show();
}
function settings_show() {
    for (const o of state.settings) $('option-' + o.name).value = state.given[o.name] != null ? state.given[o.name] : o.value != null ? o.value : '';
    $('option-stop').value = state.given.stop != null ? state.given.stop : state.model.smoe.stop.map(s => s.replace(/[\\\n\t]/g, c =>
        ({ '\n': '\\n', '\t': '\\t', '\\': '\\\\' })[c])).join('\n');
}

// ---- light and dark, keys

function set_theme() {
    const dark = state.theme ? state.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}
function tip_show(event) {
    const cell = event.target.closest && event.target.closest('#map button');
    $('tip').hidden = !cell;
    if (!cell) return;
    $('tip').textContent = cell.dataset.tip;
    const box = $('tip').getBoundingClientRect();
    $('tip').style.left = Math.max(4, Math.min(event.clientX - box.width / 2, innerWidth - box.width - 4)) + 'px';
    $('tip').style.top = event.clientY - box.height - 12 + 'px';
}
function listen() {
    $('composer').onsubmit = e => { e.preventDefault(); if (state.run) stop(); else send(); };
    $('prompt').oninput = grow;
    $('prompt').onkeydown = e => {
        // on a phone there is no Shift beside Enter
        if (e.key === 'Enter' && !e.shiftKey && !e.isComposing && !matchMedia('(pointer: coarse)').matches) { e.preventDefault(); send(); }
        const own = e.key === 'ArrowUp' && !$('prompt').value && state.here.kind === 'chat' && state.here.messages.filter(m => m.role === 'user').pop();
        if (own) { e.preventDefault(); edit(own); }
    };
    $('messages').onclick = e => {
        const span = e.target.closest('.token');
        if (!span || getSelection().toString()) return;
        const m = state.here.messages.find(x => x.node && x.node.contains(span));
        token_choose(m, Number(span.dataset.n));
    };
    $('talk').onscroll = () => {
        const t = $('talk');
        state.follows = t.scrollHeight - t.scrollTop - t.clientHeight < 60;
        $('down').hidden = state.follows;
    };
    $('down').onclick = () => follow(true);
    $('new-chat').onclick = () => begin('chat');
    $('new-text').onclick = () => begin('text');
    $('menu').onclick = () => side(document.body.classList.contains('narrow'));
    $('shade').onclick = () => side(false);
    for (const x of ['experts', 'settings']) $('show-' + x).onclick = () => panel($('panel').hidden || $(x).hidden ? x : null);
    for (const x of ['token', 'experts', 'settings']) $('tab-' + x).onclick = () => panel(x);
    $('close').onclick = () => panel(null);
    $('map').onpointermove = tip_show;
    $('map').onpointerleave = () => { $('tip').hidden = true; };
    $('theme').onclick = () => { state.theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'; set_theme(); keep(); };
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', set_theme);
    addEventListener('keydown', e => {
        const writes = /^(TEXTAREA|INPUT|SELECT)$/.test(document.activeElement.tagName);
        if (e.key === 'Escape') { if (state.run) stop(); else if (state.focus) { state.focus = null; paint_all(); loads_show(); } else if (!$('panel').hidden) panel(null); }
        else if ((e.key === 'ArrowLeft' || e.key === 'ArrowRight') && state.at && (!writes || !$('prompt').value)) { e.preventDefault(); token_move(e.key === 'ArrowLeft' ? -1 : 1); }
        else if (e.key === '/' && !writes) { e.preventDefault(); prompt_focus(); }
    });
    addEventListener('resize', () => follow());
    addEventListener('storage', e => { if (e.key === KEPT) restore_talks(); });
}

(async () => {
    restore();
    set_theme();
    listen();
    side(innerWidth >= 800);
    state.here = { kind: 'text', messages: [] };
    try {
        const model = (await (await request('v1/models')).json()).data[0], m = model.smoe;
        state.model = model;
        state.settings = m.settings.concat({ name: 'seed', whole: true, low: 0, high: 9e15, help: 'the same seed gives the same text; empty: a new one each time' });
        let at = 0;
        state.routers = m.routers.map(r => { const own = { ...r, at }; at += r.chosen; return own; });
        document.title = model.id + ' · smoe.c';
        $('about').replaceChildren(node('b', {}, model.id), node('br', {}), short(m.parameters) + ' parameters' + (m.active < m.parameters ? ', ' + short(m.active) +
            ' for each token' : '') + '. It sees ' + count(m.context) + ' tokens. ' + m.device + ', ' + m.descriptor);
        settings_make();
        if (!state.routers.length) { $('loads').replaceChildren(node('p', { class: 'dim' }, 'This model is dense: it has no experts.')); }
        colors_make();
        if (state.routers.length) map_make();
        $('new-chat').hidden = !m.chat;
        begin(m.chat && !m.prompt ? 'chat' : 'text');
        $('prompt').value = m.prompt;
        grow();
    } catch (e) { $('messages').replaceChildren(); talk_show(); trouble_show(e.message); }
})();
})();
