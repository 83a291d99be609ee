// Picking subnets in the figure of the front, the tooltip, copying, and the choice of colours.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("picks").textContent);
  const tip = document.getElementById("tip");
  const panel = document.getElementById("panel");
  const said = document.getElementById("said");
  const NEAR = 30; // units of the drawing within which a mark is meant
  const SVG = "http://www.w3.org/2000/svg";

  const make = (name, className, ...children) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    node.append(...children);
    return node;
  };

  const facts = (found) => make("dl", "facts", ...found.map(([name, value, beside, measured]) => {
    const value_ = make("dd", "", measured || value);
    if (measured) value_.append(" ", make("small", "was", "measured"));
    if (beside) value_.append(" ", make("small", "", `predicted ${beside}`));
    return make("div", "", make("dt", "", name), value_);
  }));

  const genes = (choice) => {
    const head = make("tr", "", make("th", ""), ...data.columns.map((name) => make("th", "", name)));
    const rows = data.rows.map((name, row) => {
      const first = make("th", "", name);
      first.scope = "row";
      return make("tr", "", first, ...choice.genes[row].map((value) => make("td", "", value)));
    });
    return make("table", "genes", make("thead", "", head), make("tbody", "", ...rows));
  };

  const say = (text) => { said.textContent = text; };

  const copy = async (text, button) => {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", "said", text);
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    say(done ? "Copied." : "Copying is not allowed here.");
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };

  const command = (text) => {
    const code = make("pre", "", make("code", "", text));
    code.tabIndex = 0;
    const button = make("button", "copy", "Copy");
    button.type = "button";
    return make("div", "command", code, button);
  };

  // -- picking ------------------------------------------------------------------------------

  const marksOf = (index) => document.querySelectorAll(`[data-choice="${index}"]`);

  const pick = (index, speak = true) => {
    const choice = data.choices[index];
    if (!choice || !panel) return;
    for (const mark of document.querySelectorAll("[data-choice]")) {
      const picked = mark.dataset.choice === String(index);
      mark.classList.toggle("picked", picked);
      mark.setAttribute("aria-selected", String(picked));
      mark.tabIndex = picked ? 0 : -1;
    }
    for (const button of document.querySelectorAll("[data-pick]")) {
      button.closest("tr").classList.toggle("picked", button.dataset.pick === String(index));
    }
    const text = make("div", "", facts(choice.facts));
    for (const note of choice.notes) text.append(make("p", "small", note));
    const title = make("h3", "name", "Picked: ", make("strong", "", choice.name));
    const parts = make("div", "panel-parts", text, make("div", "scroll", genes(choice)));
    panel.replaceChildren(title, parts, command(choice.command));
    panel.dataset.picked = index;
    panel.hidden = false;
    if (speak) say(`Picked subnet ${choice.name}. The command that exports it is in the panel below the figure.`);
  };

  // -- the tooltip --------------------------------------------------------------------------

  const hide = () => {
    tip.hidden = true;
    for (const focus of document.querySelectorAll(".focus")) focus.replaceChildren();
  };

  const outline = (mark) => {
    const focus = mark.closest("svg").querySelector(".focus");
    const [x, y] = [mark.getAttribute("cx"), mark.getAttribute("cy")];
    const [left, right] = mark.dataset.x.split(" ");
    const [low, high] = mark.dataset.y.split(" ");
    const shapes = [
      ["line", { x1: left, x2: right, y1: y, y2: y }],
      ["line", { x1: x, x2: x, y1: low, y2: high }],
      ["circle", { cx: x, cy: y, r: 8 }],
    ].map(([name, attributes]) => {
      const shape = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
      return shape;
    });
    focus.replaceChildren(...shapes);
  };

  const show = (mark) => {
    const choice = data.choices[mark.dataset.choice];
    if (!choice) return;
    hide();
    outline(mark);
    tip.replaceChildren(make("strong", "", choice.name), facts(choice.facts), genes(choice));
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const page = document.documentElement;
    const right = at.right + 14;
    const left = right + box.width < page.clientWidth - 8 ? right : at.left - 14 - box.width;
    const top = Math.min(Math.max(8, at.top - box.height / 2), page.clientHeight - box.height - 8);
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${Math.max(8, left < 8 ? at.bottom + 14 : top) + scrollY}px`;
  };

  const nearest = (svg, event) => {
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(svg.getScreenCTM().inverse());
    let best = null;
    let least = NEAR;
    for (const mark of svg.querySelectorAll("[data-choice]")) {
      const away = Math.hypot(mark.getAttribute("cx") - at.x, mark.getAttribute("cy") - at.y);
      if (away < least) [best, least] = [mark, away];
    }
    return best;
  };

  const move = (mark, key) => {
    const marks = [...mark.closest("svg").querySelectorAll("[data-choice]")]
      .sort((a, b) => a.getAttribute("cx") - b.getAttribute("cx"));
    const at = marks.indexOf(mark);
    const to = {
      ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1,
      Home: 0, End: marks.length - 1,
    }[key];
    if (to === undefined) return false;
    const next = marks[Math.min(Math.max(to, 0), marks.length - 1)];
    for (const other of marks) other.tabIndex = other === next ? 0 : -1;
    next.focus();
    return true;
  };

  for (const svg of document.querySelectorAll(".front-figure svg:has([data-choice])")) {
    svg.addEventListener("pointermove", (event) => {
      const mark = nearest(svg, event);
      if (mark) show(mark); else hide();
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("click", (event) => {
      const mark = nearest(svg, event);
      if (mark) pick(mark.dataset.choice);
    });
    svg.addEventListener("focusin", (event) => {
      if (event.target.dataset.choice && event.target.matches(":focus-visible")) show(event.target);
    });
    svg.addEventListener("focusout", hide);
    svg.addEventListener("keydown", (event) => {
      const mark = event.target;
      if (!mark.dataset.choice) return;
      if (event.key === "Enter" || event.key === " ") {
        pick(mark.dataset.choice);
        event.preventDefault();
      } else if (move(mark, event.key)) {
        event.preventDefault();
      }
    });
  }

  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.pick) {
      pick(button.dataset.pick);
      panel.scrollIntoView({ block: "nearest" });
    } else if (button.classList.contains("copy")) {
      copy(button.parentElement.querySelector("code").textContent, button);
    }
  });
  for (const button of document.querySelectorAll(".copy")) button.hidden = false;

  // -- colours ------------------------------------------------------------------------------

  const themes = { auto: "as the system", light: "light", dark: "dark" };
  const toggle = document.getElementById("theme");
  const stored = () => { try { return localStorage.getItem("hwnas-theme"); } catch { return null; } };
  const colour = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    toggle.textContent = `◐ ${name}`;
    toggle.setAttribute("aria-label", `Colours: ${themes[name]}`);
    toggle.dataset.now = name;
    try { localStorage.setItem("hwnas-theme", name); } catch { /* pages of files may not store */ }
  };
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    const names = Object.keys(themes);
    colour(names[(names.indexOf(toggle.dataset.now) + 1) % names.length]);
  });
  colour(stored() in themes ? stored() : "auto");

  if (data.first !== null) pick(data.first, false);
  document.documentElement.dataset.ready = "yes";
})();
