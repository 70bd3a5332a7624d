// Keeps the numbers and lines of a page up to date. The server says which part has which text; it is
// set as text, so nothing of it can become a part of the page.
"use strict";
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

  const take = (event) => {
    const parts = JSON.parse(event.data);
    for (const [id, text] of Object.entries(parts.texts)) {
      const element = document.getElementById(id);
      if (id === "listed" && element) {
        isListOld = element.textContent !== text;
      } else if (id === "stage" && element && element.textContent !== text) {
        // There is something else to decide now.
        location.reload();
      } else if (element) {
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
