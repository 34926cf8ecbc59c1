// report.js: drives report.html in a browser; tests/report.sh puts it into a page of its own. The report stands in a frame, as it is.
// `given`: { page, other, log }: the report, that of another run, and the log of that one.
'use strict';
const says = [];
const check = (good, what) => says.push((good ? 'ok   ' : 'FAIL ') + what);
const wait = ms => new Promise(done => setTimeout(done, ms));
// Reads a file while everything waits. The browser's clock jumps over idle time (--virtual-time-budget), and to it a page that reads
// files is idle: without a real wait the clock runs out first on a busy machine.
function read_now() {
    const url = URL.createObjectURL(new Blob(['x'.repeat(1 << 16)])), request = new XMLHttpRequest();
    request.open('GET', url, false);
    request.send();
    URL.revokeObjectURL(url);
}

async function open_page(html, width) {
    const frame = document.createElement('iframe');
    frame.style = 'border:0;height:900px;width:' + width + 'px';
    document.body.append(frame);
    await new Promise(done => { frame.onload = done; frame.srcdoc = html; });
    const w = frame.contentWindow, d = w.document;
    w.sessionStorage.clear();
    const page = { frame, w, d, $: id => d.getElementById(id), data: JSON.parse(d.getElementById('data').textContent) };
    page.chart = id => d.getElementById('chart-' + id);
    page.line = id => d.querySelector('[data-line="' + id + '"]');
    page.tip = () => page.$('tip').hidden ? '' : page.$('tip').textContent;
    page.pointer = (type, id, part, more) => {          // part: of the width of the axes
        const r = page.chart(id).getBoundingClientRect();
        page.chart(id).dispatchEvent(new w.PointerEvent(type, { clientX: r.left + 46 + part * (r.width - 56), clientY: r.top + 60,
                bubbles: true, pointerType: 'mouse', button: 0, ...more }));
    };
    page.key = (id, key) => { page.chart(id).focus(); page.chart(id).dispatchEvent(new w.KeyboardEvent('keydown', { key,
            bubbles: true, cancelable: true })); };
    page.set = async (id, value) => { const e = page.$(id); if (e.type === 'checkbox') e.checked = value; else e.value = value; e.dispatchEvent(new w.Event('input')); await wait(60); };
    page.drop = async files => {
        const t = new w.DataTransfer();
        for (const [name, content] of files) t.items.add(new w.File([content], name));
        const says_now = () => page.$('runs').textContent + page.$('trouble').textContent, before = says_now();
        d.dispatchEvent(new w.DragEvent('drop', { bubbles: true, cancelable: true, dataTransfer: t }));
        for (let i = 0; i < 500 && says_now() === before; i++) { read_now(); await wait(2); }        // files are read beside
    };
    return page;
}
const step_of = tip => Number((/^step ([\d,]+)/.exec(tip) || [0, '-1'])[1].replace(/,/g, ''));

async function test_curves(p) {
    const loss = p.data.curves.loss, last = loss.x[loss.x.length - 1];
    check(p.line('loss loss 0') && /^M.*L/.test(p.line('loss loss 0').getAttribute('d')) && p.line('lr lr 0'), 'curves are drawn');
    check(p.line('loss val 0') && p.d.querySelectorAll('#chart-loss circle.dot').length === p.data.curves.val.x.length, 'validations are points');
    await p.set('smoothing', 0);
    p.pointer('pointermove', 'loss', 0.5);
    const step = step_of(p.tip()), at = loss.x.indexOf(step), text = Number(loss.y[at] && loss.y[at].toPrecision(5));
    check(Math.abs(step - last / 2) <= 2 && p.tip().includes('training ' + text) && p.tip().includes('nats per token'),
            'the cursor shows step, values and unit: ' + p.tip());
    check(p.d.querySelectorAll('#chart-lr .cursor path').length === 1, 'the cursor is in every chart');
    p.pointer('pointerleave', 'loss', 0.5);
    check(!p.tip(), 'and goes with the pointer');
    await p.drop([['short.jsonl', log_of(s => 3, {}, 30)]]);
    p.pointer('pointermove', 'loss', 0.4);
    const before = p.tip();
    p.pointer('pointermove', 'loss', 0.9);
    check(before.includes('short, training') && before.includes('one, training') && p.tip().includes('one, training') &&
            !p.tip().includes('short'), 'a run that has ended has no value there');
    p.d.querySelector('#runs tr:last-child button').click();
    await p.set('smoothing', 0.9);
    check(p.d.querySelectorAll('#chart-loss .line.faint').length === 1 &&
            p.line('loss loss 0').getAttribute('d') !== p.d.querySelector('#chart-loss .faint').getAttribute('d'),
            'smoothing keeps the raw curve behind');

    p.$('show loss val 0').click();
    check(!p.line('loss val 0') && p.line('loss loss 0') && p.$('show loss val 0').getAttribute('aria-pressed') === 'false', 'a curve is hidden');
    p.$('show loss val 0').click();
    check(p.line('loss val 0') && p.$('show loss val 0').getAttribute('aria-pressed') === 'true', 'and shown again');

    await p.set('loss-axis', 'log');
    check(p.chart('loss').parentNode.textContent.includes('logarithmic'), 'the loss has a logarithmic axis');
    await p.set('loss-axis', 'fit');
    await p.set('log-x', true);
    p.pointer('pointermove', 'loss', 0.5);
    check(step_of(p.tip()) > 0 && step_of(p.tip()) < last / 3, 'and so have steps');
    await p.set('log-x', false);
    await p.set('across', 'time');
    check(p.chart('loss').textContent.includes('time'), 'curves over time');
    await p.set('across', 'step');
}
async function test_zoom(p) {
    const last = p.data.step;
    p.pointer('pointerdown', 'loss', 0.5);
    p.pointer('pointermove', 'loss', 0.75);
    check(p.d.querySelector('#chart-loss .select'), 'dragging selects');
    p.pointer('pointerup', 'loss', 0.75);
    await wait(60);
    p.pointer('pointermove', 'lr', 0);
    const from = step_of(p.tip());
    p.pointer('pointermove', 'lr', 1);
    const to = step_of(p.tip());
    check(Math.abs(from - last / 2) <= 3 && Math.abs(to - 0.75 * last) <= 3, 'dragging zooms all charts: ' + from + ' to ' + to);
    p.chart('lr').dispatchEvent(new p.w.MouseEvent('dblclick', { bubbles: true }));
    p.pointer('pointermove', 'lr', 1);
    check(step_of(p.tip()) === last, 'a double click shows everything');
    const r = p.chart('loss').getBoundingClientRect();
    for (let i = 0; i < 4; i++) p.chart('loss').dispatchEvent(new p.w.WheelEvent('wheel', { deltaY: -100, clientX: r.left +
            r.width / 2, clientY: r.top + 50, cancelable: true, bubbles: true }));
    await wait(60);
    p.pointer('pointermove', 'loss', 0);
    check(step_of(p.tip()) > 0.15 * last, 'the wheel zooms: from step ' + step_of(p.tip()));
    p.key('loss', '0');
    p.key('loss', 'End');
    check(step_of(p.tip()) === last, 'keys move the cursor: End');
    p.key('loss', 'ArrowLeft');
    check(step_of(p.tip()) === last - 1, 'and an arrow');
    p.key('loss', '+');
    await wait(60);
    p.pointer('pointermove', 'loss', 0);
    check(step_of(p.tip()) > 0.1 * last, 'and + zooms');
    p.key('loss', '0');
    p.key('loss', 'Escape');
    check(!p.tip(), 'Escape ends the cursor');
}
function log_of(vals, more, steps, losses, events) {
    const lines = [JSON.stringify({ event: 'start', model: 'm4', data: 'd', val_tokens: 9, options: { out: 'x', lr: 0.5, ...more } })];
    for (let s = 1; s <= (steps || 800); s++) {
        lines.push(JSON.stringify({ event: 'step', step: s, loss: losses ? losses(s) : 5 - 4 * s / 800, lr: 1e-3, norm: 1, ms: 100, tok_s: 5000 }));
        if (s % 50 === 0) lines.push(JSON.stringify({ event: 'val', step: s, loss: vals(s) }));
    }
    return lines.concat((events || []).map(e => JSON.stringify(e))).join('\n') + '\n';
}
// The verdict of the report on another run, which is removed again.
async function verdict_of(p, ...log) {
    await p.drop([['w.jsonl', log_of(...log)]]);
    const words = [...p.d.querySelectorAll('#verdict li')].map(li => li.textContent).filter(t => t.startsWith('w: ')).join(' ');
    p.d.querySelector('#runs tr:last-child button').click();
    return words;
}
async function test_verdicts(p) {
    const is = async (pattern, what, ...log) => { const v = await verdict_of(p, ...log); check(pattern.test(v), 'verdict: ' + what + ': ' + v); };
    await is(/^w: Diverged at step 700: the training loss is now 529; it began at 4.99/, 'diverged, an older log', s => 3, {}, 800, s => s < 700 ? 5 - s / 400 : 529);
    await is(/^w: Diverged at step 650/, 'diverged, as the trainer says', s => 4.5, {}, 800, s => s < 640 ? 5 - s / 400 : 4.9,
             [{ event: 'diverged', step: 650, loss: 4.9 }]);
    await is(/^w: (Still|Plateau)/, 'recovered', s => 3, {}, 800, s => s > 200 && s < 260 ? 9 : 5 - s / 400,
             [{ event: 'diverged', step: 216 }, { event: 'recovered', step: 276 }]);
    await is(/^w: Memorized: the training loss is 0.0.*, the validation loss 5, after 2 at step 200/, 'memorized', s => s < 200 ? 3 : s === 200 ? 2 : 5, {}, 800,
             s => Math.max(0.01, 5 - s / 100));
    await is(/^w: Memorized/, 'memorized before the second validation', s => s > 700 ? 4 : NaN, {}, 800, s => Math.max(0.01, 5 - s / 100));
    await is(/^w: One batch/, '-a 1', s => 5, { overfit: 1 }, 800, s => Math.max(0.01, 5 - s / 100));
    await is(/^w: Plateau: .* less than it varies/, 'a plateau with noise', s => 3 + (s % 100 ? 0.1 : 0) - s / 20000);
    await is(/^w: Still falling: .* still above the 3 of step 50/, 'lost and being won back', s => s === 50 ? 3 : 5 - s / 800);
    await is(/^w: Not a number/, 'not a number', s => 3, {}, 800, s => s < 790 ? 3 : null);
    const short = [...Array(20).keys()].map(i => ({ event: 'val_short', step: 40 * i + 40, loss: i < 18 ? 5 - i / 10 : 3.4 }));
    await is(/^w: Still falling: the loss of short validations fell by [\d.]+ in the last \d+ steps\.$/, 'short validations vary, the last full one is the best',
             s => 5 - s / 400, {}, 800, s => 5 - s / 400, short);
    await p.drop([['w.jsonl', log_of(s => 3, {}, 800, s => s < 700 ? 5 - s / 400 : 529)]]);
    const most = Math.max(...[...p.d.querySelectorAll('#chart-loss text.end')].filter(e => e.getAttribute('x') < 46).map(e => Number(e.textContent) || 0));
    check(most > 3 && most < 10 && p.d.querySelector('#chart-loss').parentNode.textContent.includes('a part lies above'),
          'a run that diverged leaves the others their axis: up to ' + most);
    p.d.querySelector('#runs tr:last-child button').click();
}
// What the page saves, when this is clicked.
async function saved_by(p, id) {
    let blob = null, name = '', content = null;
    const make = p.w.URL.createObjectURL, click = p.w.HTMLAnchorElement.prototype.click;
    p.w.URL.createObjectURL = b => { blob = b; return '#'; };
    p.w.HTMLAnchorElement.prototype.click = function () { name = this.download; };
    p.$(id).click();
    for (let i = 0; i < 500 && !blob; i++) { read_now(); await wait(2); }
    p.w.URL.createObjectURL = make;
    p.w.HTMLAnchorElement.prototype.click = click;
    if (blob) blob.text().then(t => { content = t; });
    for (let i = 0; i < 500 && blob && content === null; i++) { read_now(); await wait(2); }
    return { name, blob, content: content || '' };
}
// Width, height and the colors of a picture.
async function look_at(blob) {
    let image = null;
    createImageBitmap(blob).then(i => { image = i; });
    for (let i = 0; i < 500 && !image; i++) { read_now(); await wait(2); }
    if (!image) return { width: 0, height: 0, colors: new Set() };
    const canvas = document.createElement('canvas'), context = canvas.getContext('2d');
    canvas.width = image.width, canvas.height = image.height;
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
    return { width: image.width, height: image.height, colors: new Set(pixels) };
}
async function test_export(p) {
    const picture = await saved_by(p, 'save-loss-svg'), doc = new DOMParser().parseFromString(picture.content, 'image/svg+xml');
    check(picture.name === 'one-loss.svg' && doc.documentElement.nodeName === 'svg' && !doc.querySelector('parsererror') &&
          [...doc.querySelectorAll('path')].some(e => /^rgb/.test(e.getAttribute('stroke')) && e.getAttribute('d').length > 200) &&
          !/var\(|class=/.test(picture.content), 'a chart is saved as a picture that stands alone');
    const names = [...doc.querySelectorAll('text tspan')], drawn = [...doc.querySelectorAll('path')].map(e => e.getAttribute('stroke'));
    check(names.map(e => e.textContent).join() === 'Loss: one,training,validation' && names[1].getAttribute('fill') !== names[2].getAttribute('fill'),
          'with its title, and its lines by their colors: ' + names.map(e => e.textContent + ' ' + e.getAttribute('fill')) + '; ' + drawn.slice(-2));
    const png = await saved_by(p, 'save-loss-png'), seen = await look_at(png.blob);
    check(png.name === 'one-loss.png' && png.blob.type === 'image/png' && seen.width === 2 * Number(doc.documentElement.getAttribute('width')) &&
          seen.height === 2 * Number(doc.documentElement.getAttribute('height')) && seen.colors.size > 100 && !seen.colors.has(0),
          'and as PNG at twice the size: ' + png.name + ', ' + seen.width + ' x ' + seen.height + ', ' + seen.colors.size + ' colors');
    const table = (await saved_by(p, 'save-csv')), lines = table.content.trim().split('\n'), vals = lines.filter(l => l.startsWith('one,val,'));
    check(table.name === 'one.csv' && lines[0] === 'run,curve,step,tokens,seconds,value,lowest,highest' &&
          vals.length === p.data.curves.val.x.length && Number(vals[0].split(',')[5]) === p.data.curves.val.y[0], 'curves are saved as a table');
}
// Of each run, in the order of the page: the text of the table's cell or of the tiles.
const column_of = (p, i) => [...p.d.querySelectorAll('#runs tr')].slice(1).map(tr => tr.cells[i].textContent).join();
const tiles_of = p => [...p.d.querySelectorAll('#cards section')].map(s => s.querySelector('h3').textContent);
async function test_sweep(p) {
    const at = rate => given.log.replace('"lr": 0.01,', '"lr": ' + rate + ',');
    await p.drop([['x.jsonl', log_of(s => 3)]]);
    await p.drop([['log.jsonl', given.log]]);
    check(p.$('sweep').hidden && /do not compare/.test(p.$('compared').textContent) && !p.d.querySelector('#runs .winner'),
          'runs on other tokens are not ranked');
    p.d.querySelector('#runs tr:last-child button').click();
    check(p.$('sweep').hidden && !p.$('compared').textContent && p.d.querySelectorAll('#runs .winner').length === 1, 'runs on the same tokens are');
    await p.drop([['three.jsonl', at('0.05')]]);
    check(!p.$('sweep').hidden && p.$('sweep-by').value === 'lr' && p.d.querySelectorAll('#sweep-chart circle').length === 3 &&
          /^Lowest at lr 0.0/.test(p.$('sweep-says').textContent), 'a sweep: the best loss over the rate: ' + p.$('sweep-says').textContent);
    check([...p.d.querySelectorAll('#chart-loss [data-line="loss val_short 1"]')].length === 1, 'short validations are drawn');
    const picture = await saved_by(p, 'save-sweep-svg');
    check(picture.content.includes('<circle') && (await saved_by(p, 'save-sweep-png')).blob.type === 'image/png', 'and saved as a picture');
    await p.drop([['four.jsonl', at('0.005') + '{"event": "diverged", "step": 40, "loss": 9}\n']]);
    check(column_of(p, 0) === 'one,four,two,three' && column_of(p, 1) === '0.002,0.005,0.01,0.05' && p.d.querySelector('#runs tr').cells[1].textContent === 'lr',
          'runs are sorted by the setting that differs, which is shown: ' + column_of(p, 0) + ' at ' + column_of(p, 1));
    const tiles = tiles_of(p);
    check(tiles.length === 4 && tiles[0].startsWith('onelr 0.002') && tiles[1].startsWith('fourlr 0.005') && tiles[3].startsWith('threelr 0.05'),
          'each run has tiles, with its name and that setting: ' + tiles.join('; '));
    check(p.d.querySelectorAll('#sweep-chart .lost').length === 1 && /Diverged \(rings\): 0.005\./.test(p.$('sweep-says').textContent),
          'a run that diverged is marked: ' + p.$('sweep-says').textContent);
    await p.drop([['five.jsonl', at('0.05').replace('"optimizer": "muon"', '"optimizer": "adamw"')]]);
    const names = [...p.$('sweep-by').options].map(o => o.value);
    check(names[0] === 'lr' && names.includes('steps') && names[names.length - 1] === 'optimizer' && !names.includes('out'),
          'all settings that differ can be chosen: ' + names);
    p.$('sweep-by').value = 'optimizer';
    p.$('sweep-by').dispatchEvent(new p.w.Event('change'));
    check(column_of(p, 0).startsWith('five,') && column_of(p, 1) === 'adamw,muon,muon,muon,muon' && !p.d.querySelector('#sweep-chart .line') &&
          [...p.d.querySelectorAll('#sweep-chart text')].some(e => e.textContent === 'adamw'), 'words, too: ' + column_of(p, 1));
    p.$('sweep-by').value = 'lr';
    p.$('sweep-by').dispatchEvent(new p.w.Event('change'));
    for (let i = 0; i < 4; i++) p.d.querySelector('#runs tr:last-child button').click();
    check(p.$('sweep').hidden && tiles_of(p).join().startsWith('one '), 'and goes with the runs: ' + tiles_of(p));
}
async function test_compare(p) {
    const evil = '<img src=x onerror="parent.ran=1">';
    await p.drop([['log.jsonl', given.log]]);
    check(p.d.querySelectorAll('#runs tr').length === 3 && p.line('loss loss 1') && p.line('loss val 1'), 'a log is compared');
    await p.drop([['report.html', given.other]]);
    check(p.d.querySelectorAll('#runs tr').length === 4 && p.line('loss loss 2'), 'a report is compared');
    const [a, b] = [...p.d.querySelectorAll('#runs tr')].slice(2).map(tr => [...tr.cells].slice(1, 9).map(c => c.textContent).join());
    const [of_log, of_report] = [...p.d.querySelectorAll('#cards dl')].slice(1).map(e => e.textContent);
    check(a === b && of_log === of_report, 'a log and its report say the same: ' + a + ' and ' + b + '; ' + of_log + ' and ' + of_report);
    check([...p.d.querySelectorAll('#settings tr.differs')].some(tr => tr.cells[0].textContent === 'lr'), 'settings that differ are marked');
    for (let i = 0; i < 2; i++) p.d.querySelector('#runs tr:last-child button').click();
    check(p.d.querySelectorAll('#runs tr').length === 0 && !p.line('loss loss 1'), 'runs are removed');
    await p.drop([['notes.txt', 'nothing of this kind']]);
    check(/notes.txt is neither/.test(p.$('trouble').textContent) && p.d.querySelectorAll('#runs tr').length === 0, 'another file is refused');
    await p.drop([[evil + '.jsonl', log_of(s => 4 + Math.abs(s - 450) / 100, { [evil]: evil })]]);
    check(p.d.querySelectorAll('img').length === 0 && p.d.body.textContent.includes(evil), 'names and settings of others are text');
    check(/Overfits since step 450: .* from 4 to 7.5/.test(p.$('verdict').textContent), 'verdict: overfits');
    p.d.querySelector('#runs tr:last-child button').click();
    await p.drop([['f.jsonl', log_of(s => 5 - s / 400)]]);
    check(/f: Still falling: the validation loss fell by 0.6/.test(p.$('verdict').textContent), 'verdict: still falling');
    p.d.querySelector('#runs tr:last-child button').click();
    await p.drop([['g.jsonl', log_of(s => 3 + 2 * Math.exp(-s / 50))]]);
    check(/g: Plateau/.test(p.$('verdict').textContent), 'verdict: levelled off');
    p.d.querySelector('#runs tr:last-child button').click();
    check(!window.ran, 'nothing from outside ran');
}
function test_rest(p) {
    const row = name => [...p.d.querySelectorAll('#settings tr')].find(tr => tr.cells[0].textContent === name);
    check(row('lr').textContent.includes('given') && row('optimizer') && !row('beta1') && !row('recompute'), 'settings that matter are shown');
    p.$('all-settings').click();
    check(row('beta1') && !row('beta1').textContent.includes('given') && row('recompute').cells[1].textContent === 'auto' &&
          row('val-batches').cells[1].textContent === 'all', 'all of them on request, in words');
    p.$('all-settings').click();
    check(p.d.querySelector('h1').textContent === 'one' && p.$('machine').textContent.includes(p.data.start.model), 'the title is the name of the run');
    check(p.d.querySelectorAll('#samples pre').length === p.data.samples.list.length &&
            p.d.querySelector('#samples pre').textContent === p.data.samples.list[0].text, 'samples');
    const machine = p.$('machine').textContent;
    check(machine.includes(p.data.start.command) && machine.includes(p.data.start.machine) &&
            machine.includes(p.data.start.compiler), 'command, machine and compiler');
    check(/Peak memory\d+ MB/.test(p.$('cards').textContent) && /of validation/.test(p.$('cards').textContent), 'memory and time of validation');
    check(p.d.querySelectorAll('#strips canvas').length === p.data.loads.routers.length &&
            p.$('matrix').querySelector('canvas').height > 20, 'loads of every router');
    const canvas = p.$('matrix').querySelector('canvas'), r = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new p.w.PointerEvent('pointermove', { clientX: r.left + 90, clientY: r.top + 3 }));
    check(p.tip().includes(p.data.loads.routers[0].name + ', expert 0, step') && p.tip().includes('times the mean'), 'a load is named: ' + p.tip());
    check(p.$('state').textContent === 'Finished.', 'the run has ended');
}

(async () => {
    try {
        const p = await open_page(given.page, 1200);
        await test_curves(p);
        await test_zoom(p);
        test_rest(p);
        await test_compare(p);
        await test_verdicts(p);
        await test_sweep(p);
        await test_export(p);
        p.frame.remove();
        const phone = await open_page(given.page, 360);
        check(phone.d.documentElement.scrollWidth <= 360, 'a page of 360 pixels is not clipped: ' + phone.d.documentElement.scrollWidth);
        await phone.drop([['log.jsonl', given.log]]);
        check(phone.d.documentElement.scrollWidth <= 360, 'nor with two runs: ' + phone.d.documentElement.scrollWidth);
        const before = phone.w.getComputedStyle(phone.d.body).backgroundColor;
        phone.$('theme').click();
        check(phone.w.getComputedStyle(phone.d.body).backgroundColor !== before, 'light and dark');
    } catch (e) { check(false, 'no error: ' + e + ' ' + e.stack); }
    const out = document.createElement('pre');
    out.id = 'says';
    out.textContent = '\n' + says.join('\n') + '\n' + says.filter(s => s[0] === 'o').length + ' passed, ' +
            says.filter(s => s[0] !== 'o').length + ' failed\n';
    document.body.replaceChildren(out);
})();
