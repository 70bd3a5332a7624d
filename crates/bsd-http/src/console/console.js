// What a page does beside showing: it keeps its numbers up to date, shows the numbers of its charts,
// copies bodies, and knows keys. All of a page is there without it. The server says which part has
// which text; it is set as text, so nothing of it can become a part of the page.
"use strict";

// Numbers and lines that follow the server.
(() => {
  const RETRY_MS = 10000;
  const url = document.body.dataset.events;
  const state = document.getElementById("connection");
  if (!url || !state || !window.EventSource) {
    return;
  }
  let source = null;
  let retry = 0;

  // The rows of a list are those of when the page was loaded.
  let isListOld = false;

  const say = (word) => {
    if (state.textContent !== word) {
      state.textContent = word;
      state.dataset.state = word;
    }
  };

  // Nothing that was typed, chosen or opened is lost by loading the page again.
  const isIdle = () => {
    const at = document.activeElement;
    return !at || at === document.body || at.id === "main";
  };

  const take = (event) => {
    const parts = JSON.parse(event.data);
    for (const [id, text] of Object.entries(parts.texts)) {
      const element = document.getElementById(id);
      if (!element || element.textContent === text) {
        isListOld = isListOld && id !== "listed";
      } else if (id === "listed") {
        isListOld = true;
      } else if (id === "stage" || (id === "reload" && isIdle())) {
        // There is something else to be seen, or to decide, now.
        location.reload();
      } else if (id === "reload") {
        isListOld = true;
      } else {
        element.textContent = text;
      }
    }
    for (const [id, path] of Object.entries(parts.paths)) {
      document.getElementById(id)?.setAttribute("d", path);
    }
    say(isListOld ? "live, but the list" : "live");
  };

  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };

  const open = () => {
    close();
    source = new EventSource(url);
    source.onmessage = take;
    source.onerror = () => {
      say("not live");
      if (source && source.readyState === EventSource.CLOSED) {
        retry = setTimeout(open, RETRY_MS);
      }
    };
  };

  // A page that no one sees asks for nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => event.persisted && open());
  open();
})();

// The numbers of a chart at the time under the pointer, or at the one that the arrow keys have chosen.
(() => {
  const grouped = (value) => Math.floor(value).toLocaleString("en-US");
  const age = (seconds) => {
    const whole = Math.floor(seconds);
    const [second, minute, hour, day] = [
      whole % 60,
      Math.floor(whole / 60) % 60,
      Math.floor(whole / 3600) % 24,
      Math.floor(whole / 86400),
    ];
    if (day > 0) return `${day} d ${hour} h`;
    if (hour > 0) return `${hour} h ${minute} min`;
    return minute > 0 ? `${minute} min ${second} s` : `${second} s`;
  };
  const size = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let [value, unit] = [bytes, 0];
    while (value >= 1024 && unit + 1 < units.length) {
      value /= 1024;
      unit += 1;
    }
    return unit > 0 ? `${value.toFixed(1)} ${units[unit]}` : `${value} B`;
  };
  const SAID = {
    count: grouped,
    rate: (value) => `${value < 9.95 ? value.toFixed(value < 0.05 ? 0 : 1) : grouped(Math.round(value))} /s`,
    bytes: size,
    time: (value) => {
      if (value <= 0) return "0 s";
      if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
      if (value < 1) return `${(value * 1e3).toFixed(1)} ms`;
      return value < 10 ? `${value.toFixed(1)} s` : age(value);
    },
  };

  for (const chart of document.querySelectorAll(".chart")) {
    const drawing = chart.querySelector(".drawing");
    const names = [...chart.querySelectorAll("[data-name]")].map((item) => item.dataset.name);
    const values = chart.querySelector(".values span");
    if (!drawing || !values) {
      continue;
    }
    const cursor = document.createElement("div");
    const reading = document.createElement("div");
    [cursor.className, reading.className] = ["cursor", "reading"];
    cursor.hidden = reading.hidden = true;
    reading.setAttribute("role", "status");
    drawing.append(cursor);
    chart.append(reading);
    let chosen = null;

    const show = (at) => {
      const lines = JSON.parse(values.textContent);
      const last = lines[0].length - 1;
      chosen = Math.max(0, Math.min(last, at));
      const ago = ((last - chosen) / (last + 1)) * Number(chart.dataset.seconds);
      const when = new Date(Date.now() - ago * 1000);
      const isFar = Number(chart.dataset.seconds) > 86400;
      const time = isFar ? when.toLocaleString() : when.toLocaleTimeString();
      reading.replaceChildren(`${time}, ${age(ago)} ago`);
      lines.forEach((line, nth) => {
        const said = line[chosen] === null ? "not known" : SAID[chart.dataset.unit](line[chosen]);
        const value = document.createElement("b");
        value.textContent = said;
        reading.append(document.createElement("br"), `${names[nth]} `, value);
      });
      cursor.hidden = reading.hidden = false;
      const part = chosen / Math.max(1, last);
      cursor.style.left = `${part * 100}%`;
      const x = drawing.offsetLeft + part * drawing.offsetWidth;
      const room = chart.clientWidth - reading.offsetWidth - 8;
      const beside = part > 0.5 ? x - reading.offsetWidth - 8 : x + 8;
      reading.style.left = `${Math.max(8, Math.min(room, beside))}px`;
    };
    const hide = () => {
      cursor.hidden = reading.hidden = true;
      chosen = null;
    };

    const follow = (event) => {
      const place = drawing.getBoundingClientRect();
      const count = JSON.parse(values.textContent)[0].length;
      show(Math.round(((event.clientX - place.left) / place.width) * (count - 1)));
    };
    drawing.addEventListener("pointermove", follow);
    drawing.addEventListener("pointerdown", follow);
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) {
        event.preventDefault();
        show(chosen === null ? Number.MAX_SAFE_INTEGER : chosen + step);
      } else if (event.key === "Escape") {
        hide();
      }
    });
  }
})();

// A button that copies a body, times as this machine has them, and folded parts that an address names.
(() => {
  for (const copied of document.querySelectorAll(".copied")) {
    const text = copied.querySelector("pre");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        // Not over HTTP from another machine: there the text is marked for the keys that copy.
        getSelection().selectAllChildren(text);
        button.textContent = "Marked";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    copied.append(button);
  }
  for (const time of document.querySelectorAll("time[datetime]")) {
    time.title = `${new Date(time.dateTime).toLocaleString()} (${time.dateTime})`;
  }
  const unfold = () => {
    const named = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    const folded = named && named.closest("details");
    if (folded) {
      folded.open = true;
    }
  };
  window.addEventListener("hashchange", unfold);
  unfold();
})();

// Keys: / looks for something, j and k go through a list, x ticks, ? says which keys there are.
(() => {
  const KEPT = "bsd-keys";
  const sheet = document.getElementById("keys");
  const opener = document.getElementById("keys-open");
  if (!sheet || !opener || !sheet.showModal) {
    return;
  }
  const choice = document.getElementById("keys-on");
  const kept = () => {
    try {
      return localStorage.getItem(KEPT);
    } catch {
      return null;
    }
  };
  let isOn = kept() !== "off";
  choice.checked = isOn;
  choice.addEventListener("change", () => {
    isOn = choice.checked;
    try {
      localStorage.setItem(KEPT, isOn ? "on" : "off");
    } catch {
      // Then it is so for this page alone.
    }
  });
  opener.hidden = false;
  opener.addEventListener("click", () => sheet.showModal());

  const isTyping = (element) =>
    element.matches("textarea, select, input:not([type=checkbox], [type=radio])");
  const links = () =>
    [...document.querySelectorAll("main tbody th a, main .finding a")].filter(
      (link) => link.offsetParent,
    );

  // From the row that has the focus, or into the first one.
  const go = (step) => {
    const all = links();
    const row = document.activeElement.closest("tr, .finding li, .finding .what");
    const at = all.findIndex((link) => link.closest("tr, .finding li, .finding .what") === row);
    const next = all[at < 0 ? 0 : at + step];
    next?.focus();
    next?.closest("tr, .finding li, .finding .what").scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("keydown", (event) => {
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!isOn || !isPlain || isTyping(event.target) || sheet.open) {
      return;
    }
    const acts = {
      "/": () => document.getElementById("find")?.focus(),
      "?": () => sheet.showModal(),
      j: () => go(1),
      k: () => go(-1),
      x: () => document.activeElement.closest("tr")?.querySelector("input[type=checkbox]")?.click(),
    };
    const act = acts[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
})();
