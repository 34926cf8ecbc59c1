// page.js: draws the report from the data in the page. Whatever comes from a run (names, samples, settings) becomes text, never
// markup: nodes are made by node() and svg(), and nothing is parsed as HTML.
'use strict';
(function () {
const $ = id => document.getElementById(id);
const finite = Number.isFinite;

function fill(e, attributes, children) {
    for (const k in attributes) if (attributes[k] != null) e.setAttribute(k, attributes[k]);
    for (const c of children) if (c != null) e.append(c);
    return e;
}
const node = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

// ---- numbers as text

const count = x => Math.round(x).toString().replace(/\B(?=(\d{3})+$)/g, ',');
function short(x, digits) {
    const a = Math.abs(x);
    if (!finite(x)) return '–';
    if (a >= 1e4) for (const [n, unit] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']])
        if (a >= n) return Number((x / n).toPrecision(digits || 3)) + unit;
    return a && a < 1e-3 ? x.toExponential((digits || 3) - 1).replace(/\.?0*e/, 'e') : String(Number(x.toPrecision(digits || 4)));
}
function duration(s) {
    if (!finite(s)) return '–';
    if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + ' s';
    s = Math.round(s);
    if (s < 3600) return Math.floor(s / 60) + ' min ' + s % 60 + ' s';
    return count(Math.floor(s / 3600)) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
}
const bytes = b => b >= 1e9 ? (b / 1e9).toFixed(1) + ' GB' : (b / 1e6).toFixed(0) + ' MB';

// ---- runs: the one of this page, and others to compare

const numbers = list => Array.isArray(list) ? list.map(v => finite(v) ? v : null) : [];
const object = v => v && typeof v === 'object' && !Array.isArray(v) ? v : {};
const text = v => typeof v === 'string' ? v : v == null ? '' : typeof v === 'object' ? JSON.stringify(v) : String(v);

// Data as in the page, made safe to use: every number is one, every curve has a place for each point.
function make_run(data, name) {
    const run = { name, data, start: object(data.start), end: object(data.end), resumed: object(data.resumed), curves: {} };
    const all = object(data.curves), loss = object(all.loss);
    run.options = Object.assign({}, object(run.start.options), object(run.resumed.options));
    run.session = Object.assign({}, run.start, run.resumed);
    for (const key in all) {
        const c = object(all[key]), x = numbers(c.x || loss.x), y = numbers(c.y).slice(0, x.length);
        run.curves[key] = { x, y, low: c.low && numbers(c.low), high: c.high && numbers(c.high), stride: c.stride || 1 };
    }
    // seconds and tokens at the points of the loss
    const at = run.curves.loss || { x: [] }, ms = run.curves.ms, speed = run.curves.tok_s;
    let seconds = 0, tokens = 0, before = at.x.length && at.x[0] !== null ? at.x[0] - 1 : 0;
    run.clock = { step: [], time: [], tokens: [] };
    at.x.forEach((step, i) => {
        if (step === null) return;
        const s = ms && ms.y[i] > 0 ? (step - before) * ms.y[i] / 1000 : 0;
        seconds += s;
        tokens += speed && speed.y[i] > 0 ? s * speed.y[i] : 0;
        before = step;
        run.clock.step.push(step);
        run.clock.time.push(seconds);
        run.clock.tokens.push(tokens);
    });
    return run;
}
function between(from, to, x) {                         // piecewise linear
    let low = 0, high = from.length - 1;
    if (high < 1) return x;
    while (high - low > 1) { const m = (low + high) >> 1; if (from[m] <= x) low = m; else high = m; }
    return to[low] + (x - from[low]) / ((from[high] - from[low]) || 1) * (to[high] - to[low]);
}
const across = (run, step) => state.across === 'step' ? step : between(run.clock.step, run.clock[state.across], step);

// A log.jsonl in the form of the page's data.
function data_of_log(log) {
    const keys = { loss: 'loss', lr: 'lr', norm: 'norm', balance: 'balance', att_balance: 'att_balance', max_load: 'max_load',
                   tok_s: 'tok_s', z: 'z', dead: 'dead', ms: 'ms' };
    const data = { start: null, resumed: null, end: null, step: -1, seconds: 0, curves: {}, best: null };
    let steps = [], vals = [], shorts = [];
    for (const line of log.split('\n')) {
        let o;
        try { o = JSON.parse(line); } catch (e) { continue; }
        o = object(o);
        if (o.event === 'start') { data.start = o; data.end = null; }
        if (o.event === 'resume') { data.resumed = o; data.end = null; }
        if (o.event === 'end') data.end = o;
        const back = o.event === 'resume' ? o.step + 1 : o.event === 'step' ? o.step : Infinity;
        while (steps.length && steps[steps.length - 1].step >= back) steps.pop();
        for (const list of [vals, shorts]) while (list.length && list[list.length - 1].step >= back) list.pop();
        if (data.diverged >= back) data.diverged = null;
        if (o.event === 'step' && finite(o.step)) steps.push(o);
        if (o.event === 'val' && finite(o.step)) vals.push(o);
        if (o.event === 'val_short' && finite(o.step)) shorts.push(o);
        if (o.event === 'usage') {
            data.validation_seconds = (data.validation_seconds || 0) + (o.validation_seconds || 0);
            data.peak_memory = o.peak_memory;
        }
        if (o.event === 'diverged') data.diverged = o.step;
        if (o.event === 'recovered') data.diverged = null;
    }
    if (!data.start && !steps.length) throw new Error('it has no events of a run');
    const stride = Math.ceil(steps.length / 1024) || 1, groups = [];
    for (let i = 0; i < steps.length; i += stride) groups.push(steps.slice(i, i + stride));
    for (const key in keys) {
        const c = { stride, x: [], y: [], low: [], high: [] };
        for (const group of groups) {
            const v = group.map(o => o[key]).filter(finite);
            c.x.push(group.reduce((sum, o) => sum + o.step, 0) / group.length);
            c.y.push(v.length ? v.reduce((a, b) => a + b) / v.length : null);
            c.low.push(v.length ? Math.min(...v) : null);
            c.high.push(v.length ? Math.max(...v) : null);
        }
        if (stride === 1) c.low = c.high = undefined;
        if (c.y.some(v => v)) data.curves[key] = c;
    }
    for (const [key, list] of [['val', vals], ['val_short', shorts]])
        if (list.length) data.curves[key] = { stride: 1, x: list.map(o => o.step), y: list.map(o => o.loss) };
    if (shorts.length) data.short_tokens = shorts[shorts.length - 1].tokens;
    for (const o of vals) if (finite(o.loss) && (data.best === null || o.loss < data.best)) {
        data.best = o.loss;
        data.best_step = o.step;
        data.best_bits = o.bits_per_byte;
    }
    if (steps.length) data.step = steps[steps.length - 1].step;
    data.seconds = steps.reduce((sum, o) => sum + (o.ms > 0 ? o.ms / 1000 : 0), 0);
    data.tokens = steps.reduce((sum, o) => sum + (o.ms > 0 && o.tok_s > 0 ? o.ms / 1000 * o.tok_s : 0), 0);
    return data;
}
function data_of_file(content) {
    const mark = '<script type="application/json" id="data">', at = content.indexOf(mark);
    if (at < 0) return data_of_log(content);
    return JSON.parse(content.slice(at + mark.length, content.indexOf('<' + '/script>', at)));
}

// ---- what the reader has chosen, which survives that the page loads itself again

const place = 'report ' + location.pathname;
const state = { smoothing: 0.6, across: 'step', log_x: false, loss_axis: 'fit', range: null, hidden: {}, cursor: null, all: false,
                theme: null, others: [], scroll: 0, focus: '', column: null, by: null };
try { Object.assign(state, JSON.parse(sessionStorage.getItem(place))); } catch (e) { /* a browser that keeps nothing */ }
function keep() {
    state.scroll = window.scrollY;
    state.focus = document.activeElement ? document.activeElement.id : '';
    for (const others of [state.others, []])            // too much to keep: without the other runs
        try { sessionStorage.setItem(place, JSON.stringify({ ...state, others })); return; } catch (e) { /* as above */ }
}

const data = JSON.parse($('data').textContent);
const folder = d => text(object(object(d.start).options).out).replace(/\/+$/, '').replace(/^.*\//, '');      // its name
const self = make_run(data, folder(data) || 'this run');
let runs = [self];                  // sorted by the setting that is compared; place: in order of arrival; lost: where it diverged, or null
function collect_runs() {
    runs = [self];
    for (const o of state.others) {
        try { runs.push(make_run(object(o.data), o.name)); } catch (e) { trouble(o.name + ': ' + e.message); }
    }
    const seen = {};
    runs.forEach((r, place) => {
        seen[r.name] = (seen[r.name] || 0) + 1;
        if (seen[r.name] > 1) r.name += ' (' + seen[r.name] + ')';
        r.place = place;
        r.lost = diverged(r);
    });
    const names = differing();
    if (!names.includes(state.by)) state.by = names[0];
    runs.sort((a, b) => is_number(a) && is_number(b) ? a.options[state.by] - b.options[state.by]
                                                     : setting(a).localeCompare(setting(b), 'en', { numeric: true }));
}
// The settings in which runs differ, the rate first, then other numbers; the folder of a run is none.
function differing() {
    const values = name => runs.filter(r => name in r.options).map(r => text(r.options[name]));
    const differs = name => !['out', 'resume'].includes(name) && new Set(values(name)).size > 1;
    const rank = name => name === 'lr' ? 0 : typeof self.options[name] === 'number' ? 1 : 2;
    return Object.keys(self.options).filter(differs).sort((a, b) => rank(a) - rank(b));
}
const is_number = r => typeof r.options[state.by] === 'number' && r.options[state.by] >= 0;
const setting = r => state.by in r.options ? in_words(state.by, r.options[state.by]) : '';

// ---- the verdict

const mean = list => list.reduce((a, b) => a + b, 0) / list.length;
const points = c => c ? c.x.map((x, i) => [x, c.y[i]]).filter(p => p[0] !== null && p[1] !== null) : [];
function recent(c, part) {                              // the mean of the last part of a curve
    const p = points(c);
    return p.length ? mean(p.slice(-Math.max(1, Math.round(part * p.length))).map(q => q[1])) : NaN;
}
// The straight line through the last third of a curve: the loss that is lost over that third, and twice its standard error.
function falls(p) {
    const q = p.slice(-Math.max(3, Math.ceil(p.length / 3))), n = q.length;
    if (n < 3) return null;
    const mx = mean(q.map(v => v[0])), my = mean(q.map(v => v[1])), over = q[n - 1][0] - q[0][0];
    const spread = q.reduce((s, v) => s + (v[0] - mx) ** 2, 0) || 1;
    const slope = q.reduce((s, v) => s + (v[0] - mx) * (v[1] - my), 0) / spread;
    const rest = q.reduce((s, v) => s + (v[1] - my - slope * (v[0] - mx)) ** 2, 0) / Math.max(1, n - 2);
    return { by: -slope * over, noise: 2 * Math.sqrt(rest / spread) * over, steps: over, at: my };
}
const sinks = f => f !== null && f.by > Math.max(0.01 * f.at, f.noise);
// Where the run lost what it had learned: as the trainer says, or, in older logs, by the trainer's rule (progress.h): the loss is back
// half of the way from its lowest to the first, at least 1 nat; or above the first and that of guessing.
function diverged(run) {
    const p = points(run.curves.loss), d = run.data;
    if (finite(d.diverged) && d.diverged >= 0) return { step: d.diverged, at: recent(run.curves.loss, 0.05) };
    if (p.length < 8 || d.diverged === null || run.start.vocabulary) return null;
    const means = p.slice(0, -2).map((q, i) => (q[1] + p[i + 1][1] + p[i + 2][1]) / 3), lowest = Math.min(...means);
    const top = Math.max(p[0][1], Math.log(run.start.vocabulary || 2)), above = top + Math.max(0.5, top / 10);
    const bound = Math.min(above, lowest + Math.max(1, (p[0][1] - lowest) / 2));
    let at = p.length;
    while (at && p[at - 1][1] > bound) at--;
    return p.length - at >= 3 && at ? { step: p[at][0], at: recent(run.curves.loss, 0.05) } : null;
}
// The validations that say most about the course: the short ones, if there are more of them, which are all over the same tokens.
function course_of(run) {
    const val = points(run.curves.val), short = points(run.curves.val_short);
    return short.length > val.length ? [short, 'loss of short validations'] : [val, 'validation loss'];
}
function verdict(run) {
    const d = run.data, [val, name] = course_of(run), training = points(run.curves.loss), says = [];
    const add = (kind, words) => says.push({ kind, words });
    if (!training.length) return [{ kind: 'plain', words: 'No step has been made yet.' }];
    const last_y = run.curves.loss.y[run.curves.loss.y.length - 1], lost = run.lost, now = recent(run.curves.loss, 0.05);
    const best = val.reduce((b, p) => !b || p[1] < b[1] ? p : b, null), last = val[val.length - 1];
    const later = best ? val.filter(p => p[0] > best[0]).length : 0, of = finite(d.best_step) ? d.best_step : best && best[0];
    const worse = best && last[1] > best[1] * 1.01 && !(of >= last[0]);         // a last full validation that is the best says no
    if (last_y === null) add('bad', 'Not a number: the loss is not finite any more. A lower learning rate (-l) or stronger clipping (-cg) may help.');
    else if (lost) add('bad', 'Diverged at step ' + count(lost.step) + ': the training loss is now ' + short(lost.at) + '; it began at ' +
            short(training[0][1]) + (run.start.vocabulary ? ', and guessing has ' + short(Math.log(run.start.vocabulary)) : '') +
            '. A lower learning rate (-l), more warm-up (-u) or stronger clipping (-cg) may help.');
    else if (Number(run.options.overfit)) add('plain', 'One batch is trained on again and again (-a 1): the training loss is ' + short(now) + '.');
    else if (best && now < 0.3 * last[1] && now < 0.15 * training[0][1]) add('bad', 'Memorized: the training loss is ' + short(now) + ', the validation loss ' + short(last[1]) +
            (later ? ', after ' + short(best[1]) + ' at step ' + count(best[0]) : '') + '. Fewer steps (-x), more text, dropout (-dr) or a ' +
            'smaller model would help; the best weights are those of step ' + count(of) + '.');
    else if (worse && later >= 2 && !sinks(falls(val))) {
        const then = training.filter(p => p[0] <= best[0]).slice(-20).map(p => p[1]), learns = then.length && now < mean(then) - 0.01;
        add('bad', (learns ? 'Overfits' : 'Gets worse') + ' since step ' + count(best[0]) + ': the ' + name + ' has risen from ' +
            short(best[1]) + ' to ' + short(last[1]) + (learns ? ' while the training loss fell to ' + short(now) +
            '. More text, dropout (-dr) or a smaller model would help; ' : '; ') + 'the best weights are those of step ' + count(of) + '.');
    } else {
        const f = falls(val.length >= 4 ? val : smooth_points(training)), what = val.length >= 4 ? name : 'training loss';
        const above = worse ? ', and is still above the ' + short(best[1]) + ' of step ' + count(best[0]) : '';
        if (sinks(f)) add(above ? 'plain' : 'good', 'Still falling: the ' + what + ' fell by ' + short(f.by, 2) + ' in the last ' +
            count(f.steps) + ' steps' + above + (run.end.event ? '. More steps would help.' : '.'));
        else if (f) add('plain', 'Plateau: the ' + what + ' changed by ' + short(Math.abs(f.by), 2) + ' in the last ' + count(f.steps) +
            ' steps' + (f.noise > Math.abs(f.by) ? ', less than it varies.' : '.'));
        else add('plain', 'Too few points to judge yet.');
    }
    if (lost || last_y === null) return says;
    const dead = recent(run.curves.dead, 0.05), most = recent(run.curves.max_load, 0.05);
    if (dead >= 1) add('bad', 'About ' + count(dead) + ' experts get no token: a higher -ra would balance them.');
    else if (most > 4) add('bad', 'The busiest expert gets ' + short(most, 2) + ' times the mean: a higher -ra would balance it.');
    const speed = points(run.curves.tok_s).map(p => p[1]);
    if (speed.length > 40) {
        const usual = speed.slice().sort((a, b) => a - b)[speed.length >> 1], late = recent(run.curves.tok_s, 0.1);
        if (late < 0.7 * usual) add('plain', 'Slower than it was: ' + short(late) + ' instead of ' + short(usual) +
                ' tokens per second. Is the machine busy?');
    }
    return says;
}
function smooth_points(p) {
    const size = Math.ceil(p.length / 24), out = [];
    for (let i = 0; size && i + size <= p.length; i += size) {
        const part = p.slice(i, i + size);
        out.push([mean(part.map(q => q[0])), mean(part.map(q => q[1]))]);
    }
    return out;
}

// ---- head, cards

function show_head() {
    document.title = self.name + ' – training report';
    document.querySelector('h1').textContent = self.name;
    const list = $('verdict');
    list.replaceChildren();
    for (const r of runs) for (const s of verdict(r)) list.append(node('li', { class: s.kind }, runs.length > 1 ? r.name + ': ' : null, s.words));
    if (data.damaged) list.append(node('li', { class: 'bad' }, count(data.damaged) + ' lines of the log could not be read and are left out.'));
    if (self.start.fallback === true) list.append(node('li', { class: 'plain' },
            'Trained on this project’s own text, because tinyshakespeare could not be had.'));
}
// The tiles of a run, under its name and what distinguishes it.
function show_cards() {
    const head = r => node('h3', {}, runs.length > 1 ? node('i', { class: 'c' + r.place % 6 }) : null, r.name,
            setting(r) ? node('span', { class: 'mark' }, state.by + ' ' + setting(r)) : null, ' ',
            node('span', { class: 'dim' }, [text(r.start.model), text(r.start.data).replace(/: .*/, '')].filter(v => v).join(', ')));
    $('cards').replaceChildren(...runs.map(r => node('section', {}, head(r), node('dl', {}, ...cards_of(r)))));
}
function cards_of(run) {
    const d = run.data, total = Number(run.options.steps), cards = [];
    const seconds = finite(run.end.seconds) ? run.end.seconds : d.seconds;
    const speed = finite(run.end.tok_s) ? run.end.tok_s : d.tokens / d.seconds;
    const ms = recent(run.curves.ms, 0.1), left = total > d.step && d.every ? (total - d.step) * ms / 1000 : NaN;
    const memory = run.end.peak_memory || d.peak_memory, training = recent(run.curves.loss, 0.05);
    const card = (name, value, note) => cards.push(node('div', {}, node('dt', {}, name), node('dd', {}, value), note ? node('dd',
            { class: 'dim' }, note) : null));
    if (finite(d.best)) card('Best validation loss', short(d.best), 'step ' + count(d.best_step) + (d.best_bits > 0 ? ', ' +
            short(d.best_bits) + ' bits/byte' : ''));
    if (finite(training)) card('Training loss', short(training), 'mean of the last twentieth');
    if (d.step >= 0) card('Steps', count(d.step), total > 0 ? 'of ' + count(total) + (left > 0 ? ', about ' + duration(left) + ' left' : '') : '');
    if (seconds > 0) card('Time of training', duration(seconds), d.validation_seconds > 0 ? 'and ' + duration(d.validation_seconds) +
            ' of validation' : '');
    if (speed > 0) card('Tokens per second', count(speed), count(run.end.tokens || d.tokens) + ' tokens in all');
    if (finite(run.start.parameters)) card('Parameters', short(run.start.parameters),
            finite(run.start.active) ? short(run.start.active) + ' active for a token' : '');
    if (memory > 0) card('Peak memory', bytes(memory), 'of the host');
    return cards;
}

// ---- curves

const CHARTS = [
    { id: 'loss', title: 'Loss', unit: 'nats per token', wide: true, curves: [['loss', 'training'],
        ['val', 'validation'], ['val_short', 'short validation']] },
    { id: 'lr', title: 'Learning rate', unit: '', zero: true, exact: true, curves: [['lr', 'rate']] },
    { id: 'norm', title: 'Gradient norm', unit: '', may_log: true, zero: true, curves: [['norm', 'norm']] },
    { id: 'balance', title: 'Balance loss', unit: '1 is even', even: true, curves: [['balance', 'MLP'], ['att_balance', 'attention']] },
    { id: 'max_load', title: 'Busiest expert', unit: 'times the mean load', even: true, curves: [['max_load', 'load']] },
    { id: 'dead', title: 'Experts without a token', unit: 'experts', zero: true, exact: true, curves: [['dead', 'experts']] },
    { id: 'z', title: 'Router z-loss', unit: '', zero: true, curves: [['z', 'z-loss']] },
    { id: 'tok_s', title: 'Speed', unit: 'tokens per second', zero: true, curves: [['tok_s', 'speed']] },
];
const UNITS = { step: 'step', tokens: 'tokens', time: 'time' };
const shown_x = x => state.across === 'time' ? duration(x) : state.across === 'tokens' ? short(x) : count(x);

// The lines of a chart: one for each curve of each run.
function lines_of(chart) {
    const lines = [];
    runs.forEach(run => chart.curves.forEach(([key, name], k) => {
        const c = run.curves[key];
        if (!c || !c.y.some(v => v !== null)) return;
        const label = runs.length > 1 ? run.name + (chart.curves.length > 1 ? ', ' + name : '') : name;
        const id = chart.id + ' ' + key + ' ' + run.place;
        lines.push({ id, run, key, label, color: runs.length > 1 ? run.place % 6 : k, dashed: runs.length > 1 && k > 0, hidden: !!state.hidden[id],
                     x: c.x.map(x => x === null ? null : across(run, x)), y: c.y, low: c.low, high: c.high, step: c.x,
                             dots: key.startsWith('val'), exact: key.startsWith('val') || chart.exact });
    }));
    return lines;
}
// Exponential moving average, corrected for its start.
function smoothed(y, weight) {
    let sum = 0, n = 0;
    return y.map(v => {
        if (v === null) return null;
        sum = weight * sum + (1 - weight) * v;
        n = weight * n + (1 - weight);
        return sum / n;
    });
}
function full_range() {
    let a = Infinity, b = -Infinity;
    for (const run of runs) for (const key of ['loss', 'val', 'val_short']) for (const x of (run.curves[key] || { x: [] }).x) {
        if (x === null) continue;
        const v = across(run, x);
        a = Math.min(a, v);
        b = Math.max(b, v);
    }
    if (!(a <= b)) return [0, 1];
    if (!state.log_x && a < 0.2 * b) a = 0;
    return [a, b > a ? b : a + 1];
}
function nice(range, n) {
    const raw = range / n, power = 10 ** Math.floor(Math.log10(raw)), part = raw / power;
    return power * (part < 1.5 ? 1 : part < 3.2 ? 2 : part < 7.1 ? 5 : 10);
}
function ticks(from, to, log, n) {
    const out = [];
    if (log) {
        const decades = Math.log10(to / from), every = Math.ceil(decades / 6);
        if (decades < 0.7) return ticks(from, to, false, n);
        for (let k = Math.floor(Math.log10(from)); k <= Math.log10(to); k += every)
            for (const m of decades < 2.5 ? [1, 2, 5] : [1]) { const v = m * 10 ** k; if (v >= from && v <= to) out.push(v); }
        return out;
    }
    const step = nice(to - from, n);
    for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-12) && out.length < 20; i++) out.push(Number((i * step).toPrecision(12)));
    return out;
}
const project = (v, from, to, log) => log ? Math.log(v / from) / Math.log(to / from) : (v - from) / (to - from);
const unproject = (t, from, to, log) => log ? from * (to / from) ** t : from + t * (to - from);

// The axes of a chart, of what is visible of its lines.
function axes_of(chart, lines, width, height) {
    const [full0, full1] = full_range(), [x0, x1] = state.range || [full0, full1];
    const log_x = state.log_x && x0 > 0, start = chart.wide && state.loss_axis === 'fit' && !state.range ? full0 + 0.08 * (full1 - full0) : -Infinity;
    let low = Infinity, high = -Infinity;
    const kept = lines.filter(l => !l.hidden && !l.run.lost), fitted = chart.wide && state.loss_axis === 'fit' && kept.length ? kept : lines;
    for (const pass of [start, -Infinity]) {            // a run that is all start is shown as a whole
        for (const l of fitted) for (let i = 0; i < l.x.length && !l.hidden; i++) {
            if (l.x[i] === null || l.y[i] === null || l.x[i] < x0 || l.x[i] > x1 || (l.x[i] < pass && lines.length)) continue;
            low = Math.min(low, l.low ? l.low[i] : l.y[i]);
            high = Math.max(high, l.high ? l.high[i] : l.y[i]);
        }
        if (low < high) break;
    }
    if (!(low <= high)) { low = 0; high = 1; }
    const log = low > 0 && (chart.wide ? state.loss_axis === 'log' : !!chart.may_log && high / low >= 100);
    if (chart.zero && !log) { low = Math.min(low, 0); high = Math.max(high, 0); }
    if (chart.even) { low = Math.min(low, 1); high = Math.max(high, 1); }
    if (log) { const m = (high / low) ** 0.04 || 1.01; low /= m; high *= m; }
    else {
        const range = Math.max(high - low, 1e-6 * Math.max(Math.abs(low), Math.abs(high)), 1e-30);
        if (!(chart.zero && low === 0)) low -= 0.04 * range;
        high += 0.04 * range;
    }
    if (!(high > low)) high = low + 1;
    return { x0, x1, low, high, log, log_x, left: 46, right: width - 10, top: 8, bottom: height - 36,
             clipped: lines.some(l => !l.hidden && l.y.some((v, i) => v !== null && v > high && l.x[i] >= x0 && l.x[i] <= x1)) };
}
const px = (a, x) => a.left + project(x, a.x0, a.x1, a.log_x) * (a.right - a.left);
const py = (a, y) => a.bottom - project(y, a.low, a.high, a.log) * (a.bottom - a.top);

function path_of(a, xs, ys) {
    let d = '', pen = false;
    for (let i = 0; i < xs.length; i++) {
        const draws = xs[i] !== null && ys[i] !== null && !(a.log && ys[i] <= 0) && !(a.log_x && xs[i] <= 0);
        if (draws) {
            d += (pen ? 'L' : 'M') + px(a, xs[i]).toFixed(1) + ' ' + Math.max(-1e4, Math.min(1e4, py(a, ys[i]))).toFixed(1);
            if (!pen && (i + 1 === xs.length || ys[i + 1] === null)) d += 'h0';
        }
        pen = draws;
    }
    return d;
}
function band_of(a, l) {
    let d = '';
    for (let from = 0; from < l.x.length; from++) {
        let to = from;
        while (to < l.x.length && l.x[to] !== null && l.low[to] !== null && !(a.log && l.low[to] <= 0) && !(a.log_x && l.x[to] <= 0)) to++;
        if (to === from) continue;
        const upper = [], lower = [];
        for (let i = from; i < to; i++) {
            upper.push(px(a, l.x[i]).toFixed(1) + ' ' + py(a, l.high[i]).toFixed(1));
            lower.push(px(a, l.x[i]).toFixed(1) + ' ' + py(a, l.low[i]).toFixed(1));
        }
        d += 'M' + upper.join('L') + 'L' + lower.reverse().join('L') + 'z';
        from = to;
    }
    return d;
}
function draw_axes(s, a, chart, width) {
    for (const v of ticks(a.low, a.high, a.log, chart.wide ? 6 : 4)) {
        const y = py(a, v);
        if (y < a.top - 1 || y > a.bottom + 1) continue;
        s.append(svg('path', { class: 'grid', d: 'M' + a.left + ' ' + y.toFixed(1) + 'H' + a.right }),
                 svg('text', { class: 'end', x: a.left - 6, y: (y + 4).toFixed(1) }, short(v)));
    }
    for (const v of ticks(a.x0, a.x1, a.log_x, Math.max(2, Math.min(8, width / 90)))) {
        const x = px(a, v);
        s.append(svg('path', { class: 'axis', d: 'M' + x.toFixed(1) + ' ' + a.bottom + 'v4' }),
                 svg('text', { class: x > a.right - 20 ? 'end' : 'mid', x: x.toFixed(1), y: a.bottom + 17 }, shown_x(v)));
    }
    s.append(svg('path', { class: 'axis', d: 'M' + a.left + ' ' + a.bottom + 'H' + a.right }),
             svg('text', { class: 'mid', x: (a.left + a.right) / 2, y: a.bottom + 32 }, UNITS[state.across]));
    if (chart.even && a.low < 1 && a.high > 1) s.append(svg('path', { class: 'even', d: 'M' + a.left + ' ' + py(a, 1).toFixed(1) + 'H' + a.right }));
}
function draw_line(g, a, l) {
    const color = 'c' + l.color, weight = l.exact ? 0 : state.smoothing;
    if (weight > 0) {
        g.append(svg('path', { class: 'line faint ' + color, d: path_of(a, l.x, l.y) }));
        l.smooth = smoothed(l.y, weight);
    } else if (l.low) g.append(svg('path', { class: 'band ' + color, d: band_of(a, l) }));
    g.append(svg('path', { class: 'line ' + color + (l.dashed ? ' dashed' : ''), 'data-line': l.id, d: path_of(a, l.x, l.smooth || l.y) }));
    if (l.dots && l.x.length <= 200)
        l.x.forEach((x, i) => { if (x !== null && l.y[i] !== null && x >= a.x0 && x <= a.x1) g.append(svg('circle', { class: 'dot ' +
                color, cx: px(a, x), cy: py(a, l.y[i]), r: 2.5 })); });
}
function draw_marks(g, a, chart) {
    if (!chart.wide) return;
    for (const step of numbers(data.resumes))
        g.append(svg('path', { class: 'even', d: 'M' + px(a, across(self, step)) + ' ' + a.top + 'V' + a.bottom }, svg('title', {},
                'resumed at step ' + count(step))));
    if (finite(data.best) && !state.hidden['loss val 0'])
        g.append(svg('circle', { class: 'best', cx: px(a, across(self, data.best_step)), cy: py(a, data.best), r: 6 }));
}

const drawn = {};                                       // of each chart: figure, svg, axes, lines
function legend_of(chart, lines) {
    const box = node('span', { class: 'legend' });
    if (lines.length > 1) for (const l of lines) {
        const b = node('button', { type: 'button', id: 'show ' + l.id, 'aria-pressed': String(!l.hidden), title: 'Show or hide' },
                       node('i', { class: 'c' + l.color + (l.dashed ? ' dashed' : '') }), l.label);
        b.onclick = () => { state.hidden[l.id] = !l.hidden; draw_charts(); $('show ' + l.id).focus(); };
        box.append(b);
    }
    return box;
}
function save_buttons(id, s, title, lines) {
    return node('span', { class: 'save' }, ...['svg', 'png'].map(kind => {
        const name = kind.toUpperCase(), b = node('button', { type: 'button', id: 'save-' + id + '-' + kind, title: 'Save this picture as ' + name }, name);
        b.onclick = () => save_picture(s, title, lines, kind);
        return b;
    }));
}
function draw_chart(chart) {
    const lines = lines_of(chart), d = drawn[chart.id];
    d.figure.hidden = !lines.length || !lines.some(l => l.y.some(v => v));
    if (d.figure.hidden) return;
    const width = Math.max(240, d.figure.clientWidth), height = chart.wide ? Math.max(240, Math.min(380, width * 0.5)) : 200;
    const a = axes_of(chart, lines, width, height), s = d.svg;
    s.setAttribute('viewBox', '0 0 ' + width + ' ' + height);
    s.style.height = height + 'px';
    s.replaceChildren();
    draw_axes(s, a, chart, width);
    const clip = 'clip-' + chart.id, g = svg('g', { 'clip-path': 'url(#' + clip + ')' });
    s.append(svg('clipPath', { id: clip }, svg('rect', { x: a.left - 1, y: a.top - 6, width: a.right - a.left + 8,
            height: a.bottom - a.top + 8 })), g);
    for (const l of lines) if (!l.hidden) draw_line(g, a, l);
    draw_marks(g, a, chart);
    d.cursor = svg('g', { class: 'cursor' });
    s.append(d.cursor);
    d.caption.replaceChildren(node('b', {}, chart.title), node('span', { class: 'dim' }, [chart.unit, a.log ? 'logarithmic' : '',
            a.clipped && chart.wide ? lines.some(l => !l.hidden && l.run.lost) ? 'a part lies above' : 'its start lies above' : ''].filter(v => v).join(', ')), legend_of(chart, lines),
            save_buttons(chart.id, s, chart.title, lines.filter(l => !l.hidden)));
    Object.assign(d, { axes: a, lines });
}
let waiting = false;
function draw_charts() {
    $('curves').hidden = !runs.some(r => Object.keys(r.curves).length);
    for (const chart of CHARTS) draw_chart(chart);
    draw_cursor();
}
function draw_soon() {
    if (!waiting) setTimeout(() => { waiting = false; draw_charts(); }, 16);
    waiting = true;
}

// ---- the cursor

function nearest(l, x) {
    let best = -1, distance = Infinity;
    for (let i = 0; i < l.x.length; i++)
        if (l.x[i] !== null && l.y[i] !== null && Math.abs(l.x[i] - x) < distance) { best = i; distance = Math.abs(l.x[i] - x); }
    return best;
}
function tip_at(x, y, rows) {
    const tip = $('tip');
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - box.width - 4)) + 'px';
    tip.style.top = Math.max(4, y - box.height - 10 < 4 ? y + 16 : y - box.height - 10) + 'px';
}
function draw_cursor() {
    const cursor = state.cursor;
    for (const chart of CHARTS) {
        const d = drawn[chart.id], a = d.axes;
        if (d.figure.hidden || !d.cursor) continue;
        d.cursor.replaceChildren();
        if (!cursor || cursor.x < a.x0 || cursor.x > a.x1) continue;
        const x = px(a, cursor.x), rows = [];
        d.cursor.append(svg('path', { d: 'M' + x.toFixed(1) + ' ' + a.top + 'V' + a.bottom }));
        for (const l of d.lines) {
            const i = l.hidden ? -1 : nearest(l, cursor.x), ends = l.x[l.x.length - 1];
            if (i < 0 || (i === l.x.length - 1 && cursor.x > ends + 0.02 * (a.x1 - a.x0) && !l.dots) || cursor.x > across(l.run,
                    l.run.data.step) * 1.02) continue;
            const v = (l.smooth || l.y)[i], y = py(a, v);
            if (y >= a.top - 6 && y <= a.bottom + 2) d.cursor.append(svg('circle', { class: 'dot c' + l.color, cx: px(a, l.x[i]), cy: y, r: 4 }));
            const more = l.low && l.high[i] > l.low[i] ? ' (' + short(l.low[i]) + ' to ' + short(l.high[i]) + ')' : l.smooth ? ' (' +
                    short(l.y[i]) + ')' : '';
            rows.push(node('div', {}, node('i', { class: 'c' + l.color + (l.dashed ? ' dashed' : '') }), l.label + ' ', node('b', {},
                    short(v, 5)), more,
                           l.dots ? node('span', { class: 'dim' }, ' at step ' + count(l.step[i])) : null));
        }
        if (cursor.chart !== chart.id) continue;
        const step = state.across === 'step' ? Math.round(cursor.x) : Math.round(between(self.clock[state.across], self.clock.step, cursor.x));
        const seconds = between(self.clock.step, self.clock.time, step);
        const where = d.svg.getBoundingClientRect();
        tip_at(where.left + x * where.width / (a.right + 10), where.top + (cursor.y || a.top + 40),
               [node('div', { class: 'dim' }, 'step ' + count(step) + (seconds > 0 && step <= data.step ? ', after ' +
                       duration(seconds) : '')), ...rows,
                chart.unit ? node('div', { class: 'dim' }, chart.unit) : '']);
    }
    if (!cursor) $('tip').hidden = true;
}
function set_cursor(cursor) { state.cursor = cursor; draw_cursor(); }

// ---- zoom

function zoom_to(a, b) {
    const [full0, full1] = full_range();
    a = Math.max(a, full0);
    b = Math.min(b, full1);
    if (!(b - a > (full1 - full0) * 1e-5)) return;
    state.range = a <= full0 && b >= full1 ? null : [a, b];
    draw_soon();
}
function zoom_by(factor, center) {
    const [a, b] = state.range || full_range(), log = state.log_x && a > 0;
    const t = center == null ? 0.5 : project(center, a, b, log);
    zoom_to(unproject(t - t * factor, a, b, log), unproject(t + (1 - t) * factor, a, b, log));
}
function move_by(part) {
    const [a, b] = state.range || full_range(), [full0, full1] = full_range();
    const by = Math.max(full0 - a, Math.min(full1 - b, part * (b - a)));
    zoom_to(a + by, b + by);
}

let last_scroll = 0, drag = null;
addEventListener('scroll', () => { last_scroll = Date.now(); }, { passive: true });
function listen(chart, s) {
    const place_of = e => {
        const r = s.getBoundingClientRect(), a = drawn[chart.id].axes, x = (e.clientX - r.left) * (a.right + 10) / r.width;
        return { x: unproject(Math.max(0, Math.min(1, (x - a.left) / (a.right - a.left))), a.x0, a.x1, a.log_x), y: e.clientY - r.top };
    };
    s.addEventListener('pointermove', e => {
        const p = place_of(e);
        set_cursor({ chart: chart.id, x: p.x, y: p.y });
        if (!drag || drag.chart !== chart.id) return;
        drag.to = p.x;
        const a = drawn[chart.id].axes, from = px(a, drag.from), to = px(a, p.x);
        drawn[chart.id].cursor.append(svg('rect', { class: 'select', x: Math.min(from, to), y: a.top, width: Math.abs(to - from),
                height: a.bottom - a.top }));
    });
    s.addEventListener('pointerdown', e => {
        set_cursor({ chart: chart.id, ...place_of(e) });
        if (e.pointerType === 'touch' || e.button) return;          // a finger moves the cursor
        drag = { chart: chart.id, from: place_of(e).x };
        try { s.setPointerCapture(e.pointerId); } catch (error) { /* an event of a script */ }
    });
    s.addEventListener('pointerup', () => {
        const a = drawn[chart.id].axes, d = drag;
        drag = null;
        if (d && d.to != null && Math.abs(px(a, d.to) - px(a, d.from)) > 6) zoom_to(Math.min(d.from, d.to), Math.max(d.from, d.to));
        draw_cursor();
    });
    s.addEventListener('pointercancel', () => { drag = null; });
    s.addEventListener('pointerleave', () => { if (!drag) set_cursor(null); });
    s.addEventListener('dblclick', () => { state.range = null; draw_charts(); });
    s.addEventListener('wheel', e => {
        const out = e.deltaY > 0;
        if ((out && !state.range) || Date.now() - last_scroll < 400) return;     // the page is scrolling
        e.preventDefault();
        zoom_by(out ? 1.25 : 0.8, place_of(e).x);
    }, { passive: false });
    s.addEventListener('keydown', e => {
        const l = drawn[chart.id].lines.find(v => !v.hidden), a = drawn[chart.id].axes;
        if (!l || e.ctrlKey || e.metaKey || e.altKey) return;
        const at = state.cursor ? nearest(l, state.cursor.x) : l.x.length - 1;
        const go = { ArrowLeft: at - (e.shiftKey ? 10 : 1), ArrowRight: at + (e.shiftKey ? 10 : 1), Home: 0, End: l.x.length - 1 }[e.key];
        if (go != null) {
            const x = l.x[Math.max(0, Math.min(l.x.length - 1, go))];
            if (x < a.x0) move_by(-0.25); else if (x > a.x1) move_by(0.25);
            set_cursor({ chart: chart.id, x });
        } else if (e.key === '+' || e.key === '=') zoom_by(0.7, state.cursor && state.cursor.x);
        else if (e.key === '-') zoom_by(1 / 0.7, state.cursor && state.cursor.x);
        else if (e.key === '0') { state.range = null; draw_charts(); }
        else if (e.key === 'Escape') set_cursor(null);
        else return;
        e.preventDefault();
    });
    s.addEventListener('blur', () => set_cursor(null));
}
function make_charts() {
    for (const chart of CHARTS) {
        const s = svg('svg', { tabindex: 0, role: 'img', id: 'chart-' + chart.id, 'aria-label': chart.title + ' over ' + UNITS[state.across] });
        const caption = node('figcaption'), figure = node('figure', { class: chart.wide ? 'wide' : '' }, caption, s);
        drawn[chart.id] = { svg: s, figure, caption, lines: [] };
        $('charts').append(figure);
        listen(chart, s);
    }
    const tool = (id, key, property) => {
        const e = $(id);
        e[property] = state[key];
        e.oninput = () => {
            state[key] = key === 'smoothing' ? Number(e.value) : e[property];
            if (key === 'across' || key === 'log_x') state.range = null;
            draw_soon();
        };
    };
    tool('smoothing', 'smoothing', 'value');
    tool('across', 'across', 'value');
    tool('log-x', 'log_x', 'checked');
    tool('loss-axis', 'loss_axis', 'value');
    $('save-csv').onclick = () => save_as(self.name + '.csv', 'text/csv', table_of_curves());
    $('sweep').querySelector('h3').append(' ', save_buttons('sweep', $('sweep-chart'), 'Best validation loss', []));
    $('zoom-in').onclick = () => zoom_by(0.6);
    $('zoom-out').onclick = () => zoom_by(1 / 0.6);
    $('zoom-all').onclick = () => { state.range = null; draw_charts(); };
}

// ---- loads of the experts

// The color of a load in hundredths of the mean: blue below, orange above, its own color for an expert without a token.
function shade(load) {
    const dark = document.documentElement.dataset.theme === 'dark';
    const even = dark ? [45, 49, 56] : [236, 238, 241], less = dark ? [70, 130, 220] : [40, 95, 190], more = dark ? [245, 150, 60] : [205, 85, 0];
    if (!(load >= 0.5)) return dark ? '#d24b8f' : '#a3195b';
    const t = Math.max(-1, Math.min(1, Math.log2(load / 100) / 2.5)), to = t < 0 ? less : more;
    return 'rgb(' + even.map((v, i) => Math.round(v + Math.abs(t) * (to[i] - v))).join(',') + ')';
}
// m: rows, columns, value(row, column), row_name, column_name, says(row, column), row_title, column_title, unit (height of a row)
function draw_heat(canvas, m) {
    const style = getComputedStyle(document.documentElement), scale = window.devicePixelRatio || 1;
    const width = Math.max(120, canvas.parentNode.clientWidth), context = canvas.getContext('2d');
    const left = m.left, bottom = 30, cell = (width - left - 4) / m.columns, height = m.rows * m.unit + bottom;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + 'px';
    context.scale(scale, scale);
    const gap = cell > 6 && m.unit > 6 ? 1 : 0;
    for (let r = 0; r < m.rows; r++) for (let c = 0; c < m.columns; c++) {
        const v = m.value(r, c);
        if (v == null) continue;
        context.fillStyle = shade(v);
        const x = Math.floor(left + c * cell), end = Math.floor(left + (c + 1) * cell);
        context.fillRect(x, r * m.unit, Math.max(1, end - x - gap), m.unit - gap);
    }
    context.fillStyle = style.getPropertyValue('--dim');
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (let r = 0, free = -99; r < m.rows; r++) {
        const y = (r + 0.5) * m.unit;
        if (y - free < 12) continue;
        context.fillText(m.row_name(r), left - 5, y);
        free = y;
    }
    context.textAlign = 'center';
    const wide = Math.ceil(34 / cell);
    for (let c = 0; c < m.columns; c += wide) if (c === 0 || left + (c + 0.5) * cell < width - 12)
        context.fillText(m.column_name(c), Math.max(left + 8, left + (c + 0.5) * cell), m.rows * m.unit + 9);
    context.fillText(m.column_title, left + (width - left) / 2, m.rows * m.unit + 23);
    context.textAlign = 'left';
    context.fillText(m.row_title, 0, m.rows * m.unit + 23);
    canvas.onpointermove = canvas.onpointerdown = e => {
        const r = canvas.getBoundingClientRect(), column = Math.floor((e.clientX - r.left - left) / cell),
                row = Math.floor((e.clientY - r.top) / m.unit);
        if (column < 0 || column >= m.columns || row < 0 || row >= m.rows || m.value(row, column) == null) { $('tip').hidden = true; return; }
        tip_at(e.clientX, e.clientY, [node('div', { class: 'dim' }, m.says(row, column)), node('div', {}, node('b', {},
                short(m.value(row, column) / 100, 3)), ' times the mean')]);
    };
    canvas.onpointerleave = () => { $('tip').hidden = true; };
}
function draw_scale() {
    const box = $('scale');
    box.replaceChildren(node('span', { class: 'dim' }, 'tokens of an expert / mean: '));
    for (const [v, name] of [[0, '0'], [25, '¼'], [50, '½'], [100, '1 (even)'], [200, '2'], [400, '4 and more']]) {
        const i = node('i');
        i.style.background = shade(v);
        box.append(node('span', { class: 'key' }, i, name));
    }
}
function draw_loads() {
    const loads = object(data.loads), steps = numbers(loads.steps), routers = Array.isArray(loads.routers) ? loads.routers : [];
    $('loads').hidden = !routers.length;
    if (!routers.length) return;
    draw_scale();
    const brief = name => text(name).replace(/^layer (\d+) /, '$1 '), experts = Math.max(...routers.map(r => r.experts));
    const column = () => state.column == null || state.column >= steps.length ? steps.length - 1 : state.column;
    if (!$('matrix').firstChild) {
        const canvas = node('canvas', { role: 'img' }), slider = node('input', { type: 'range', id: 'time', min: 0,
                max: steps.length - 1, 'aria-label': 'Time of the loads' });
        slider.value = column();
        slider.oninput = () => { state.column = Number(slider.value) === steps.length - 1 ? null : Number(slider.value); draw_loads(); };
        $('matrix').append(node('h3', {}, 'All layers at step ', node('output', { id: 'time-says' })), node('div', {}, canvas),
                steps.length > 1 ? node('label', {}, 'earlier ', slider, ' later') : '');
        for (const r of routers) $('strips').append(node('figure', {}, node('figcaption'), node('div', {}, node('canvas', { role: 'img' }))));
        if (loads.hidden) $('strips').append(node('p', { class: 'dim' }, count(loads.hidden) + ' more routers'));
    }
    const now = routers.flatMap(r => r.load.slice(column() * r.experts, (column() + 1) * r.experts)), least = Math.min(...now) / 100, most = Math.max(...now) / 100;
    $('time-says').textContent = count(steps[column()]) + ': ' + short(least, 2) + ' to ' + short(most, 2) + ' times the mean' +
            (least > 0.8 && most < 1.25 ? ', even' : '');
    const matrix = $('matrix').querySelector('canvas');
    matrix.setAttribute('aria-label', 'Load of every expert in every layer at step ' + steps[column()]);
    draw_heat(matrix, { rows: routers.length, columns: experts, unit: routers.length > 40 ? 9 : 16, left: 78,
        value: (r, e) => e < routers[r].experts ? routers[r].load[column() * routers[r].experts + e] : null,
        row_name: r => brief(routers[r].name), column_name: String, row_title: 'layer', column_title: 'expert',
        says: (r, e) => text(routers[r].name) + ', expert ' + e + ', step ' + count(steps[column()]) });
    routers.forEach((router, k) => {
        const figure = $('strips').children[k], least = Math.min(...router.last), most = Math.max(...router.last);
        const says = 'last: ' + short(least / 100, 3) + ' (expert ' + router.last.indexOf(least) + ') to ' + short(most / 100, 3) +
                ' (expert ' + router.last.indexOf(most) + ')';
        figure.querySelector('figcaption').replaceChildren(node('b', {}, text(router.name)), node('span', { class: 'dim' }, says));
        figure.querySelector('canvas').setAttribute('aria-label', text(router.name) + ', load of its experts over time, ' + says);
        draw_heat(figure.querySelector('canvas'), { rows: router.experts, columns: steps.length, unit: Math.max(1, Math.min(10,
                Math.floor(160 / router.experts) || 1)), left: 30,
            value: (e, c) => router.load[c * router.experts + e], row_name: String, column_name: c => short(steps[c]),
                    row_title: 'expert', column_title: 'step',
            says: (e, c) => text(router.name) + ', expert ' + e + ', step ' + count(steps[c]) });
    });
}

// ---- samples, warnings, settings, machine

function show_samples() {
    const list = object(data.samples).list || [], hidden = object(data.samples).hidden, box = $('samples');
    box.hidden = !list.length;
    list.forEach((s, i) => {
        if (i === 8 && hidden) box.append(node('p', { class: 'dim' }, count(hidden) + ' more'));
        box.append(node('details', i >= list.length - 2 ? { open: '' } : {}, node('summary', {}, s.step >= 0 ? 'step ' +
                count(s.step) : 'sample'), node('pre', {}, text(s.text))));
    });
}
function show_warnings() {
    const list = object(data.warnings).list || [], hidden = object(data.warnings).hidden, table = node('table');
    $('warnings').hidden = !list.length;
    list.forEach((w, i) => {
        if (i === 8 && hidden) table.append(node('tr', {}, node('td'), node('td', {}, count(hidden) + ' more')));
        table.append(node('tr', {}, node('td', {}, w.step >= 0 ? 'step ' + count(w.step) : ''), node('td', {}, text(w.text))));
    });
    $('warnings').append(table);
}
// A value as a user would say it: numbers that stand for a word are that word.
function in_words(name, value) {
    const v = Number(value);
    if (['recompute', 'zero', 'node-ranks', 'resume'].includes(name) && v === -1) return 'auto';
    if (name === 'val-batches' && v === -1) return 'all';
    if (name === 'steps' && v < 0) return v === -1 ? 'one epoch' : -v + ' epochs';
    return text(value) || '–';
}
function show_settings() {
    const table = $('settings').querySelector('table'), names = [];
    for (const r of runs) for (const name of Object.keys(r.options)) if (!names.includes(name)) names.push(name);
    const listed = (r, key) => [].concat(r.start[key] || [], r.resumed[key] || []), given = r => listed(r, 'given');
    const value = (r, name) => name in r.options ? in_words(name, r.options[name]) : '';
    $('settings').hidden = !names.length;
    table.replaceChildren();
    if (runs.length > 1) table.append(node('tr', {}, node('th'), ...runs.map(r => node('th', {}, r.name))));
    for (const name of names) {
        const was_given = runs.some(r => given(r).includes(name)), differs = runs.some(r => value(r, name) !== value(self, name));
        if (!state.all && !was_given && !differs && !runs.some(r => listed(r, 'shown').includes(name))) continue;
        table.append(node('tr', { class: (was_given ? 'given ' : '') + (differs ? 'differs' : '') }, node('td', {}, name),
                          ...runs.map(r => node('td', {}, value(r, name), given(r).includes(name) ? node('span', { class: 'mark' },
                                  'given') : null))));
    }
    $('all-settings').checked = state.all;
    $('all-settings').onchange = e => { state.all = e.target.checked; show_settings(); };
}
function show_machine() {
    const list = $('machine').querySelector('dl'), s = self.session, e = self.end;
    const row = (name, value) => { if (value) list.append(node('div', {}, node('dt', {}, name), node('dd', {}, value))); };
    if (s.command) {
        const copy = node('button', { type: 'button' }, 'Copy');
        copy.onclick = () => { if (navigator.clipboard) navigator.clipboard.writeText(text(s.command)).then(() => { copy.textContent = 'Copied'; }, () => {}); };
        row('Command', node('span', {}, node('code', {}, text(s.command)), ' ', copy));
    }
    row('Data', text(s.data));
    row('Tokens', finite(s.train_tokens) ? count(s.train_tokens) + ' for training, ' + count(s.val_tokens || 0) + ' for validation' : '');
    row('Device', text(s.device) + (s.ranks > 1 ? ', ' + s.ranks + ' ranks' : ''));
    row('Machine', [text(s.machine), s.cores ? s.cores + ' cores' : '', s.memory ? bytes(s.memory) + ' of memory' : ''].filter(v => v).join(', '));
    row('Compiler', text(s.compiler));
    row('Version', text(s.version));
    row('Model', text(s.model) + (s.family ? ', ' + text(s.family) : ''));
    const resumes = numbers(data.resumes).length;
    row(resumes ? 'Last started' : 'Started', text(s.time));
    row('Times resumed', resumes ? String(resumes) : '');
    row('Fingerprint of the weights', text(e.fingerprint));
    $('machine').hidden = !list.firstChild;
}

// ---- a sweep: the best loss of each run over a setting in which they differ

function draw_sweep() {
    const used = runs.filter(r => finite(r.data.best) && setting(r)), names = differing(), box = $('sweep'), pick = $('sweep-by');
    box.hidden = used.length < 3 || !names.length || !comparable();
    if (box.hidden) return;
    pick.replaceChildren(...names.map(name => node('option', { value: name }, name)));
    pick.value = state.by;
    pick.onchange = () => { state.by = pick.value; show_all(); };
    const values = [...new Set(used.map(setting))], numeric = used.every(is_number);           // words stand side by side
    const all = used.map(run => ({ run, x: numeric ? run.options[state.by] : values.indexOf(setting(run)), y: run.data.best, lost: run.lost }));
    const xs = all.map(p => p.x), first = xs[0], last = xs[xs.length - 1], best = all.reduce((b, p) => p.y < b.y ? p : b);
    const kept = all.filter(p => !p.lost), ys = (kept.length ? kept : all).map(p => p.y), high = Math.max(...ys), low = Math.min(best.y, ...ys);
    const log = numeric && first > 0 && last / first > 3, width = Math.max(240, box.clientWidth), height = 240, s = $('sweep-chart');
    const part = log ? (last / first) ** 0.06 : 0.06 * (last - first);
    const a = { x0: log ? first / part : first - part, x1: log ? last * part : last + part, log_x: log, log: false,
                low: low - 0.1 * (high - low || 1), high: high + 0.1 * (high - low || 1), left: 56, right: width - 12, top: 10, bottom: height - 36 };
    s.setAttribute('viewBox', '0 0 ' + width + ' ' + height);
    s.style.height = height + 'px';
    s.replaceChildren();
    for (const v of ticks(a.low, a.high, false, 5)) s.append(svg('path', { class: 'grid', d: 'M' + a.left + ' ' + py(a, v) + 'H' + a.right }),
            svg('text', { class: 'end', x: a.left - 6, y: py(a, v) + 4 }, short(v)));
    for (const v of new Set(xs)) s.append(svg('path', { class: 'axis', d: 'M' + px(a, v) + ' ' + a.bottom + 'v4' }),
            svg('text', { class: 'mid', x: px(a, v), y: a.bottom + 17 }, numeric ? short(v) : values[v]));
    s.append(svg('path', { class: 'axis', d: 'M' + a.left + ' ' + a.bottom + 'H' + a.right }),
             svg('text', { class: 'mid', x: (a.left + a.right) / 2, y: a.bottom + 32 }, state.by));
    if (numeric) s.append(svg('path', { class: 'line c0', d: path_of(a, kept.map(p => p.x), kept.map(p => p.y)) }));
    for (const p of all) s.append(svg('circle', { class: 'dot c0' + (p.lost ? ' lost' : '') + (p === best ? ' best-of' : ''), cx: px(a, p.x),
            cy: py(a, Math.min(p.y, a.high)), r: p === best ? 6 : 4 },
            svg('title', {}, p.run.name + ': ' + state.by + ' ' + setting(p.run) + ', best validation loss ' + short(p.y, 5) +
                    (p.lost ? ', diverged' : ''))));
    const lost = all.filter(p => p.lost);
    $('sweep-says').textContent = 'Lowest at ' + state.by + ' ' + setting(best.run) + ' (' + best.run.name + '): ' + short(best.y, 5) +
            (best.lost ? ', before it diverged.' :
             numeric && [first, last].includes(best.x) ? '. That is an end of the range: values beyond it may be better.' : '.') +
            (lost.length ? ' Diverged (rings): ' + lost.map(p => setting(p.run)).join(', ') + '.' : '');
}

// ---- export

function save_as(name, kind, content) {
    const link = node('a', { href: URL.createObjectURL(new Blob([content], { type: kind })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
}
// What the style sheet says becomes attributes: a picture has no style sheet. Above it: the title, and lines in their colors.
function picture_of(s, title, lines) {
    const copy = s.cloneNode(true), from = [s, ...s.querySelectorAll('*')], to = [copy, ...copy.querySelectorAll('*')];
    const [, , width, height] = s.getAttribute('viewBox').split(' ').map(Number);
    from.forEach((e, i) => {
        const style = getComputedStyle(e);
        for (const k of ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'text-anchor', 'font-size', 'font-family'])
            if (e !== s) to[i].setAttribute(k, style.getPropertyValue(k));
        for (const k of ['class', 'style', 'tabindex', 'data-line']) to[i].removeAttribute(k);
    });
    const shown = getComputedStyle(document.documentElement);
    const color = name => shown.getPropertyValue(name).trim();
    const head = svg('text', { fill: color('--fg'), 'font-size': 13, 'font-family': 'system-ui, sans-serif' });
    let x = 8, y = 16;
    for (const l of [{ label: title }, ...lines]) {             // letters are about 7 wide
        const wide = 7 * l.label.length + 16;
        if (x + wide > width && x > 8) { x = 8; y += 18; }
        head.append(svg('tspan', { x, y, fill: l.run && color('--c' + l.color) }, l.label));
        x += wide;
    }
    head.setAttribute('transform', 'translate(0 ' + -(y + 8) + ')');
    fill(copy, { width, height: height + y + 8, viewBox: '0 ' + -(y + 8) + ' ' + width + ' ' + (height + y + 8) }, []);
    copy.prepend(svg('rect', { x: 0, y: -(y + 8), width, height: height + y + 8, fill: color('--bg') }), head);
    return new XMLSerializer().serializeToString(copy);
}
// One line for each point: what a spreadsheet or a script reads.
function table_of_curves() {
    const cell = v => v == null ? '' : typeof v === 'number' ? String(v) : /[",\n]/.test(v) ? '"' + v.replace(/"/g, '""') + '"' : v;
    const rows = [['run', 'curve', 'step', 'tokens', 'seconds', 'value', 'lowest', 'highest']];
    for (const run of runs) for (const key of Object.keys(run.curves)) {
        const c = run.curves[key];
        c.x.forEach((x, i) => { if (x !== null && c.y[i] !== null) rows.push([run.name, key, x, Math.round(between(run.clock.step, run.clock.tokens, x)),
                Number(between(run.clock.step, run.clock.time, x).toPrecision(6)), c.y[i], c.low ? c.low[i] : null, c.high ? c.high[i] : null]); });
    }
    return rows.map(row => row.map(cell).join(',')).join('\n') + '\n';
}
// PNG: what the browser draws of the SVG, at twice its size.
function save_picture(s, title, lines, kind) {
    const name = self.name + '-' + title.toLowerCase().replace(/[^a-z]+/g, '-') + '.' + kind, image = new Image();
    const content = picture_of(s, title + (runs.length > 1 ? '' : ': ' + self.name), lines);
    if (kind === 'svg') { save_as(name, 'image/svg+xml', content); return; }
    image.onload = () => {
        const canvas = node('canvas', { width: 2 * image.width, height: 2 * image.height });
        canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob(blob => save_as(name, 'image/png', blob));
    };
    image.src = 'data:image/svg+xml,' + encodeURIComponent(content);
}

// ---- other runs

function trouble(words) { $('trouble').textContent = words; }
// Losses compare if they are of the same tokens.
const tokens_of = r => [text(r.start.data), r.start.val_tokens, r.start.vocabulary, text(r.options.seq), text(r.options['val-batches'])].join('\n');
const comparable = () => runs.every(r => tokens_of(r) === tokens_of(self));
function show_runs() {
    $('compared').textContent = '';
    const table = $('runs');
    table.replaceChildren();
    if (runs.length < 2) return;
    table.append(node('tr', {}, ...['Run', ...(state.by ? [state.by] : []), 'Best validation', 'at step', 'Training loss', 'Steps', 'Tokens/s', 'Time', 'Parameters',
            ''].map(h => node('th', {}, h))));
    const same = comparable(), best = same ? Math.min(...runs.map(r => finite(r.data.best) ? r.data.best : Infinity)) : NaN;
    $('compared').textContent = same ? '' : 'The runs were validated on different tokens: their losses do not compare, and none is marked as the best.';
    runs.forEach(r => {
        const d = r.data, remove = node('button', { type: 'button', 'aria-label': 'Remove ' + r.name }, '×');
        remove.onclick = () => { state.others.splice(r.place - 1, 1); show_all(); };
        const cells = [node('span', {}, node('i', { class: 'c' + r.place % 6 }), r.name), ...(state.by ? [setting(r)] : []), finite(d.best) ? node('span',
                { class: d.best === best ? 'winner' : '' }, short(d.best, 5)) : '–',
                       finite(d.best) ? count(d.best_step) : '–', short(recent(r.curves.loss, 0.05), 5),
                               d.step >= 0 ? count(d.step) : '–', short(d.tokens / d.seconds),
                       duration(d.seconds), finite(r.start.parameters) ? short(r.start.parameters) : '–', r.place ? remove : ''];
        table.append(node('tr', {}, ...cells.map(c => node('td', {}, c))));
    });
}
function add_run(name, content) {
    try {
        const d = { ...data_of_file(content), loads: null, samples: null, warnings: null };      // of other runs, not shown
        const run = make_run(d, /^(log\.jsonl|report\.html)$/.test(name) && folder(d) ? folder(d) : name.replace(/\.(jsonl|html)$/, ''));
        if (!run.curves.loss && !run.curves.val) throw new Error('it has no curves');
        state.others.push({ name: run.name, data: d });
        trouble('');
    } catch (e) { trouble(name + ' is neither a log.jsonl nor a report.html: ' + e.message); }
    show_all();
}
function take_files(files) { for (const f of files) f.text().then(content => add_run(f.name, content), e => trouble(f.name + ': ' + e.message)); }
function listen_for_files() {
    $('file').onchange = e => { take_files(e.target.files); e.target.value = ''; };
    addEventListener('dragover', e => { e.preventDefault(); $('drop').hidden = false; });
    addEventListener('dragleave', e => { if (!e.relatedTarget) $('drop').hidden = true; });
    addEventListener('drop', e => { e.preventDefault(); $('drop').hidden = true; take_files(e.dataTransfer.files); });
}

// ---- a run that goes on

function show_state() {
    const line = $('state'), age = Date.now() / 1000 - data.written, total = Number(self.options.steps);
    line.className = '';
    if (self.end.event) line.textContent = data.step < total ? 'Stopped at step ' + count(data.step) + ' of ' + count(total) +
            '; to continue: ./train_moe -o ' + text(self.options.out) + ' -y 1' : 'Finished.';
    else if (!data.every) line.textContent = data.step < 0 ? 'The log has no steps yet.' : 'The log has no end: the run goes on, or was interrupted.';
    else if (age > Math.max(60, 20 * data.every)) line.textContent = 'No news for ' + duration(age) +
            ': the run validates, or was interrupted at step ' + count(data.step) + ' or later.';
    else { line.textContent = 'Running: step ' + count(Math.max(0, data.step)) + (total > 0 ? ' of ' + count(total) : ''); line.className = 'live'; }
}
function load_again() {
    const busy = drag || document.hidden || (document.activeElement && /^(SELECT|INPUT)$/.test(document.activeElement.tagName) &&
            document.activeElement.matches(':active'));
    if (busy) { setTimeout(load_again, 1000); return; }
    keep();
    location.reload();
}

// ---- the page

function set_theme() {
    const dark = state.theme ? state.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}
function switch_theme() {
    state.theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    set_theme();
    draw_loads();
}
function show_all() {
    collect_runs();
    show_head();
    show_cards();
    show_runs();
    show_settings();
    draw_charts();
    draw_sweep();
}
set_theme();
make_charts();
listen_for_files();
show_state();
show_all();
show_samples();
show_warnings();
show_machine();
draw_loads();
$('theme').onclick = switch_theme;
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { set_theme(); draw_loads(); });
addEventListener('keydown', e => { if (e.key === 't' && !e.ctrlKey && !e.metaKey && !e.altKey &&
        !/^(INPUT|SELECT)$/.test(e.target.tagName)) switch_theme(); });
let width = innerWidth;
addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; draw_soon(); draw_sweep(); draw_loads(); } });
addEventListener('pagehide', keep);
if (state.scroll) scrollTo(0, state.scroll);
if (state.focus && $(state.focus)) { $(state.focus).focus({ preventScroll: true }); draw_cursor(); }
if (data.every && !self.end.event)
    setTimeout(load_again, 1000 * Math.max(3, Math.min(60, Date.now() / 1000 - data.written > 60 ? 15 : data.every)));
}());
