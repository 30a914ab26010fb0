// The page's script: the theme, the ages, the keys, and the stream of updates.
// It sends nothing but requests for pages below the page's own address.
"use strict";
(() => {
  const root = document.documentElement;
  const store = {
    get: () => { try { return localStorage.getItem("berth-theme"); } catch { return null; } },
    set: (v) => { try { localStorage.setItem("berth-theme", v); } catch { /* private windows may refuse */ } },
  };
  const chosen = store.get();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  // text writes an age as the server does.
  const text = (ms) => {
    const s = Math.max(0, Math.floor(ms / 1000));
    if (s < 120) return s + "s";
    if (s < 7200) return Math.floor(s / 60) + "m";
    if (s < 172800) return Math.floor(s / 3600) + "h";
    return Math.floor(s / 86400) + "d";
  };

  // morph makes have like want and keeps what is equal, so that the focus, an
  // open detail and a selection stay. Rows are told apart by data-k.
  const key = (n) => n.nodeType === 1 ? n.dataset.k : undefined;
  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  const morph = (have, want) => {
    if (have.nodeType !== 1) {
      if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue;
      return;
    }
    for (const a of [...have.attributes]) {
      if (!want.hasAttribute(a.name) && !(have.nodeName === "DETAILS" && a.name === "open")) have.removeAttribute(a.name);
    }
    for (const a of want.attributes) if (have.getAttribute(a.name) !== a.value) have.setAttribute(a.name, a.value);
    if (have.nodeName === "INPUT" || have.nodeName === "SELECT") return; // the user's
    children(have, want);
  };
  const children = (have, want) => {
    const keyed = new Map();
    for (const n of have.childNodes) if (key(n)) keyed.set(key(n), n);
    let at = have.firstChild;
    for (const w of [...want.childNodes]) {
      const k = key(w);
      const known = k && keyed.get(k);
      if (known && known !== at && same(known, w)) {
        have.insertBefore(known, at);
        morph(known, w);
        continue;
      }
      if (at && same(at, w)) {
        const next = at.nextSibling;
        morph(at, w);
        at = next;
        continue;
      }
      have.insertBefore(w, at);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    const body = document.body, main = document.getElementById("main");
    const live = document.getElementById("live"), theme = document.getElementById("theme");
    let ahead = Number(body.dataset.now) - Date.now(); // the server's clock less ours
    let sum = body.dataset.sum, source = null;

    const label = () => { theme.textContent = dark() ? "Light" : "Dark"; };
    theme.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      store.set(root.dataset.theme);
      label();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
    label();

    const ages = () => {
      const now = Date.now() + ahead;
      for (const t of main.querySelectorAll("time")) {
        const s = text(now - Date.parse(t.dateTime));
        if (t.textContent !== s) t.textContent = s;
      }
    };

    const say = (on, words) => {
      live.className = "live " + (on ? "on" : "off");
      if (live.textContent !== words) live.textContent = words;
    };
    const open = () => {
      if (source) return;
      source = new EventSource(body.dataset.root + "live?view=" + encodeURIComponent(body.dataset.view) + "&have=" + sum);
      source.addEventListener("hello", () => say(true, "live"));
      source.addEventListener("view", (e) => {
        const v = JSON.parse(e.data);
        const want = new DOMParser().parseFromString("<main>" + v.main + "</main>", "text/html").querySelector("main");
        ahead = v.now - Date.now();
        sum = v.sum;
        children(main, want);
        ages();
      });
      source.addEventListener("beats", (e) => {
        const beats = JSON.parse(e.data);
        for (const t of main.querySelectorAll("time[data-beat]")) {
          if (beats[t.dataset.beat]) t.dateTime = new Date(beats[t.dataset.beat]).toISOString();
        }
        ages();
      });
      source.onerror = () => {
        say(false, "connecting");
        if (source && source.readyState === EventSource.CLOSED) { // the server refused: a browser does not try again by itself
          source = null;
          setTimeout(() => { if (!document.hidden) open(); }, 5000);
        }
      };
    };
    const close = () => {
      if (source) source.close();
      source = null;
    };
    // A page that nobody sees costs the server nothing.
    document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
    addEventListener("pagehide", close);
    addEventListener("pageshow", () => { if (!document.hidden) open(); });
    setInterval(() => { if (!document.hidden) ages(); }, 1000);

    document.addEventListener("change", (e) => {
      if (e.target.form && (e.target.nodeName === "SELECT" || e.target.type === "checkbox")) e.target.form.requestSubmit();
    });
    // Empty fields do not belong into addresses.
    document.addEventListener("submit", (e) => {
      for (const f of e.target.elements) if (f.name && !f.value) f.disabled = true;
    });
    document.addEventListener("keydown", (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.nodeName);
      if (e.key === "Escape" && typing) e.target.blur();
      if (typing) return;
      if (e.key === "/") e.preventDefault(); // some browsers search the page; see keyup
      if (e.key === "j" || e.key === "k") { // to the next or previous row
        const links = [...main.querySelectorAll("td.name a")];
        const at = links.indexOf(document.activeElement);
        const to = links[e.key === "j" ? at + 1 : Math.max(0, at - 1)];
        if (to) to.focus();
      }
    });
    document.addEventListener("keyup", (e) => {
      const field = main.querySelector("input[type=search]");
      if (e.key !== "/" || !field || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.nodeName)) return;
      field.focus();
      field.select();
    });
  });
})();
