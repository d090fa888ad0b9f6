// Makes what can be stepped through of each stepper on the page that is still a plain table. See stepper.py, which
// writes both the table and the data: masks are 32 bits, one a lane; lists are written as in `spread` there.
(() => {
  "use strict";
  const make = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  // "4,8:1:3" is 4, 8, 9, 10; "nan*3,1" is nan, nan, nan, 1.
  const numbers = (text) => text === "" ? [] : text.split(",").flatMap((part) => {
    const [first, step, count] = part.split(":").map(Number);
    return count === undefined ? [first] : Array.from({ length: count }, (_, i) => first + i * step);
  });
  const words = (text) => text === "" ? [] : text.split(",").flatMap((part) => {
    const [word, count] = part.split("*");
    return Array(count === undefined ? 1 : Number(count)).fill(word);
  });
  const has = (mask, lane) => (mask >>> lane) & 1;

  const enhance = (root) => {
    root.setAttribute("data-on", "");
    const data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    const rows = [...root.querySelectorAll(".ps-all tbody tr")];
    const lines = new Map([...root.querySelectorAll("pre span[data-line]")].map((s) => [Number(s.dataset.line), s]));
    const last = data.steps.length - 1;
    let at = 0;

    // -- the parts of the page
    const button = (text, label, go) => {
      const made = make("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", go);
      return made;
    };
    const first = button("|\u25c0", "first step (Home)", () => show(0));
    const back = button("\u25c0", "one step back (left arrow)", () => show(at - 1));
    const next = button("\u25b6", "one step on (right arrow)", () => show(at + 1));
    const end = button("\u25b6|", "last step (End)", () => show(last));
    const slider = make("input", { type: "range", min: 0, max: last, value: 0, "aria-label": "step" });
    slider.addEventListener("input", () => show(Number(slider.value)));
    root.querySelector(".ps-tool").append(first, back, slider, next, end);
    const now = root.querySelector(".ps-now");
    now.hidden = false;
    root.querySelector("details.ps-steps").open = false;
    for (const link of root.querySelectorAll("[data-go]")) {
      const step = Number(link.dataset.go);
      const made = button(link.textContent, link.textContent, () => show(step));
      link.replaceWith(made);
    }

    const lanes = make("div", { class: "ps-lanes" });
    const keys = data.keys.map(([kind, mark, words]) => make("span", {}, make("b", { class: kind }, mark), words));
    root.querySelector(".ps-state").append(lanes, make("div", { class: "ps-key" }, ...keys));
    const warps = data.rows.map(([label, present]) => {
      const cells = Array.from({ length: 32 }, (_, lane) => make("b", { title: `${label}, lane ${lane}` }));
      const row = make("div", { class: "ps-warp", role: "img" }, ...cells);
      lanes.append(make("span", {}, label), row);
      return { label, present, cells, row };
    });
    const arrays = data.arrays.map(([label, open, lengths, start, unset]) => {
      const values = words(start);
      const cells = values.map(() => make("td"));
      const table = make("table", { class: "ps-cells", "aria-label": label });
      let first = 0;
      for (const [name, length] of lengths) {
        table.append(make("tr", {}, make("th", { scope: "row" }, name), ...cells.slice(first, first + length)));
        first += length;
      }
      const box = make("details", { class: "ps-memory" }, make("summary", {}, label),
        make("div", { class: "ps-scroll", tabindex: 0, role: "region", "aria-label": label }, table));
      box.open = open;
      return { values, unset: numbers(unset), cells, box };
    });
    root.querySelector(".ps-memories").append(...data.order.map((k) => arrays[k].box));
    root.querySelector(".ps-memories").after(make("p", { class: "ps-note" }, data.note));
    const steps = data.steps.map(([line, states, touches, changes]) => ({
      line, states,
      touches: touches.map(([kind, array, warp, mask, elements, count]) => ({
        kind, array, warp, mask,
        elements: numbers(elements).flatMap((e) => Array.from({ length: count }, (_, i) => e + i)),
      })),
      changes: changes.map(([array, elements, values]) => [array, numbers(elements), words(values)]),
    }));
    // Cells as wide as the longest value that comes, so that nothing moves from step to step.
    const longest = arrays.map(({ values }) => Math.max(...values.map((value) => value.length)));
    for (const [array, , values] of steps.flatMap(({ changes }) => changes)) {
      longest[array] = Math.max(longest[array], ...values.map((value) => value.length));
    }
    arrays.forEach(({ box }, a) => box.style.setProperty("--longest", longest[a]));

    // -- what they show
    const marks = {
      a: ["\u25cf", "works", "work"],
      o: ["\u25cb", "does not go on inside", "do not go on inside"],
      m: ["\u00b7", "is masked", "are masked"],
      w: ["=", "waits at a barrier", "wait at a barrier"],
      x: ["\u00d7", "has left the kernel", "have left the kernel"],
      r: ["", "rests", "rest"],
      n: ["", "does not exist", ""],
    };
    const show = (wanted) => {
      at = Math.min(last, Math.max(0, wanted));
      const step = steps[at];
      const holds = data.rows.map(() => [0, 0, 0, 0]);
      const memory = arrays.map((array) => ({ values: [...array.values], open: new Set(array.unset) }));
      for (let k = 0; k <= at; k += 1) {
        for (const [row, ...masks] of steps[k].states) holds[row] = masks;
        for (const { kind, array, elements } of steps[k].touches) {
          if (kind !== "l" && array >= 0) elements.forEach((e) => memory[array].open.delete(e));
        }
        for (const [array, elements, values] of steps[k].changes) {
          elements.forEach((e, i) => { memory[array].values[e] = values[i]; });
        }
      }
      const ends = data.races.flatMap((race) => race.slice(2).map((e) => ({ array: race[0], element: race[1], end: e })));
      const here = ends.filter(({ end: e }) => e[0] === at);

      warps.forEach(({ label, present, cells, row }, r) => {
        const [active, taken, waiting, returned] = holds[r];
        const tally = {};
        cells.forEach((cell, lane) => {
          const kind = !has(present, lane) ? "n"
            : has(waiting, lane) ? "w"
              : has(active, lane) ? (taken === null || has(taken, lane) ? "a" : "o")
                : has(returned, lane) ? "x" : active ? "m" : "r";
          const race = here.some(({ end: e }) => e[1] === r && e[2] === lane);
          cell.className = (kind === "o" ? "a" : kind) + (race ? " race" : "");
          cell.textContent = marks[kind][0];
          cell.title = `${label}, lane ${lane}: ${marks[kind][1]}`;
          if (kind !== "n") tally[kind] = (tally[kind] || 0) + 1;
        });
        const said = Object.entries(tally).map(([kind, n]) => `${n} ${marks[kind][n === 1 ? 1 : 2]}`);
        row.setAttribute("aria-label", `${label}: ${said.join(", ")}`);
      });
      arrays.forEach(({ cells }, a) => {
        const kinds = new Map();
        for (const { kind, array, elements } of step.touches) {
          if (array === a) elements.forEach((e) => kinds.set(e, kind === "l" && kinds.get(e) !== "s" ? "l" : "s"));
        }
        const raced = new Set(here.filter(({ array }) => array === a).map(({ element }) => element));
        cells.forEach((cell, i) => {
          const unset = memory[a].open.has(i);
          cell.textContent = unset ? "?" : memory[a].values[i];
          cell.className = (unset ? "u " : "") + (kinds.get(i) || "") + (raced.has(i) ? " race" : "");
        });
      });
      const [, line, text, what] = [...rows[at].cells].map((cell) => cell.textContent);
      now.replaceChildren(make("b", {}, `Step ${at + 1} of ${last + 1}, line ${line}: `), make("code", {}, text.trim()),
        make("br"), what);
      now.classList.toggle("bad", here.length > 0 || rows[at].hasAttribute("data-bad"));
      for (const [number, span] of lines) span.classList.toggle("at", number === step.line);
      slider.value = at;
      slider.setAttribute("aria-valuetext", `step ${at + 1} of ${last + 1}`);
      for (const b of [first, back]) b.setAttribute("aria-disabled", at === 0);
      for (const b of [next, end]) b.setAttribute("aria-disabled", at === last);
    };
    root.tabIndex = 0;
    root.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
      const inside = event.target.closest(".ps-scroll");  // these scroll by arrows
      if (by === undefined || inside || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      show(by);
    });
    show(0);
  };
  document.querySelectorAll(".pmpp-step:not([data-on])").forEach(enhance);
})();
