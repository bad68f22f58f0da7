// Keeps a page with an element #live up to date: when the server says that something is new, the page is
// loaded again and its main part replaced, up to that element. Forms come after it. All tabs of a browser share one stream of events: the tab
// that holds a lock has it, and passes on what it hears. Without locks (they need a secure context)
// each tab has its own. A hidden tab has none.
const main = document.querySelector("main");
const source = document.querySelector("#live")?.dataset.events;
// The response to a form is not at the address of its page.
const here = document.querySelector("#live")?.dataset.page ?? location.href;
const RETRY_MS = 10_000;
// A page that was loaded a moment ago is not loaded again by the first event.
const FRESH_MS = 2_000;

const TEXTS = {
  live: "Live",
  waiting: "Not live yet: connecting.",
  away: "Not live: no stream from the server. Trying again.",
  session: "Your session has ended, so this page is no longer live.",
  roles: "Your roles have changed, so this page is no longer live.",
  gone: "This page shows something that was deleted, or that your roles no longer permit.",
};

if (source) {
  const name = `rlaas ${new URL(".", location.href).pathname}${source}`;
  const tabs = new BroadcastChannel(name);
  const state = document.createElement("p");
  let shown = "";
  // What the stream of this tab said last; empty if another tab has the stream.
  let heard = "";
  let ended = false;
  let visible = null;
  let loading = false;
  let isOld = false;
  // Whether an event has come.
  let known = false;

  state.className = "live";
  state.setAttribute("role", "status");
  main.prepend(state);

  function show(what) {
    if (what === shown) return;
    shown = what;
    state.className = `live ${{ live: "good", waiting: "" }[what] ?? "bad"}`;
    state.textContent = TEXTS[what];
    if (what === "session" || what === "roles" || what === "gone") {
      const link = document.createElement("a");
      link.href = here;
      link.textContent = what === "session" ? "Sign in" : "Load it again";
      state.append(" ", link);
    }
  }

  function end(why) {
    ended = true;
    visible?.abort();
    show(why);
  }

  function take(message) {
    if (ended || !visible) return;
    if (message === "session" || message === "roles") {
      end(message);
    } else if (message === "away") {
      show("away");
    } else {
      show("live");
      if (known || performance.now() > FRESH_MS) load();
      known = true;
    }
  }

  // What the reader has selected must not be replaced: the next event loads the page.
  function isSelected() {
    const selection = document.getSelection();
    return !selection.isCollapsed && main.contains(selection.anchorNode);
  }

  function load() {
    if (isSelected()) return;
    if (loading) {
      isOld = true;
      return;
    }
    loading = true;
    isOld = false;
    // Only XMLHttpRequest has a document as its response: the policy (trusted types) forbids to parse
    // texts as HTML.
    const request = new XMLHttpRequest();
    request.open("GET", here);
    request.setRequestHeader("X-Console-Live", "1");
    request.responseType = "document";
    request.timeout = RETRY_MS;
    request.onloadend = () => {
      loading = false;
      if (ended) return;
      const fresh = request.response?.querySelector("main");
      if (request.status === 200 && fresh?.querySelector("#live")) {
        replace(fresh);
        if (isOld) load();
      } else if (request.status === 200) {
        end("session");
      } else if (request.status === 403) {
        end("roles");
      } else if (request.status === 404) {
        end("gone");
      } else {
        show("away");
      }
    };
    request.send();
  }

  // Replaces all from the state to #live. What the reader has opened, scrolled and focused stays so.
  function replace(fresh) {
    const open = [...main.querySelectorAll("details[open][id]")].map((one) => one.id);
    const scrolled = [...main.querySelectorAll(".scroll")].map((one) => [selector(one), one.scrollLeft, one.scrollTop]);
    const focused = selector(document.activeElement);
    const upToLive = (nodes) => nodes.slice(0, nodes.findIndex((one) => one.id === "live") + 1);
    const old = [...main.childNodes];
    const after = upToLive(old).at(-1)?.nextSibling ?? null;
    for (const one of upToLive(old)) if (one !== state) one.remove();
    for (const one of upToLive([...fresh.childNodes])) main.insertBefore(one, after);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const [of, left, top] of scrolled) main.querySelector(of)?.scrollTo(left, top);
    if (focused) main.querySelector(focused)?.focus({ preventScroll: true });
    main.dispatchEvent(new Event("content", { bubbles: true }));
  }

  function selector(element) {
    if (!element || element === main || !main.contains(element)) return null;
    if (element.id) return `#${CSS.escape(element.id)}`;
    if (element.localName === "summary") return `#${CSS.escape(element.parentElement.id)} > summary`;
    for (const name of ["href", "aria-label"]) {
      if (element.hasAttribute(name)) return `[${name}="${CSS.escape(element.getAttribute(name))}"]`;
    }
    return null;
  }

  // Holds the stream until `signal`.
  function stream(signal) {
    return new Promise((resolve) => {
      let events = null;
      let retry = 0;
      const tell = (message) => {
        heard = message;
        tabs.postMessage(message);
        take(message);
      };
      const open = () => {
        events = new EventSource(source);
        events.addEventListener("new", () => tell("new"));
        events.addEventListener("end", (event) => tell(event.data));
        events.onerror = () => {
          tell("away");
          if (events.readyState !== EventSource.CLOSED || signal.aborted) return;
          // The server refuses the stream. The page says why, if it does so too.
          load();
          retry = setTimeout(open, RETRY_MS);
        };
      };
      const close = () => {
        events?.close();
        clearTimeout(retry);
        heard = "";
        resolve();
      };
      if (signal.aborted) return close();
      signal.addEventListener("abort", close);
      open();
    });
  }

  function begin() {
    if (ended || visible || document.hidden) return;
    visible = new AbortController();
    const { signal } = visible;
    show("waiting");
    tabs.postMessage("?");
    const hold = () => stream(signal);
    if (navigator.locks) navigator.locks.request(name, { signal }, hold).catch(() => {});
    else hold();
  }

  function pause() {
    visible?.abort();
    visible = null;
  }

  tabs.onmessage = ({ data }) => {
    if (data !== "?") take(data);
    else if (heard) tabs.postMessage(heard);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : begin()));
  addEventListener("pagehide", pause);
  addEventListener("pageshow", begin);
  begin();
}

// Shows refusals while their details are open and the tab is seen: only then they are watched.
const refusals = document.querySelector("#refusals");
const MAX_REFUSALS = 100;
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

if (refusals) {
  const state = refusals.querySelector("[role=status]");
  const rows = refusals.querySelector("tbody");
  let events = null;

  function element(name, text, link) {
    const one = document.createElement(name);
    one.textContent = text;
    if (link) one.href = link;
    return one;
  }

  function add(refused) {
    for (const [at, key, link, rule, project] of refused) {
      const row = rows.insertRow(0);
      const head = document.createElement("th");
      head.scope = "row";
      head.append(element("time", at ? clock.format(new Date(at)) : "unknown"));
      row.append(head);
      for (const shown of [element(link ? "a" : "bdi", key, link), element("bdi", rule), element("bdi", project || "none")]) {
        shown.classList.add("foreign");
        row.insertCell().append(shown);
      }
    }
    while (rows.rows.length > MAX_REFUSALS) rows.deleteRow(-1);
  }

  function watch() {
    events?.close();
    events = null;
    if (!refusals.open || document.hidden) return;
    state.textContent = "Connecting.";
    events = new EventSource(refusals.dataset.events);
    events.onopen = () => (state.textContent = "Live.");
    events.onerror = () => (state.textContent = "Not live: the server is away, or as many watch as may.");
    events.addEventListener("refused", ({ data }) => add(JSON.parse(data)));
    events.addEventListener("end", () => {
      events.close();
      state.textContent = "Not live: your session has ended, or your roles have changed.";
    });
  }

  refusals.addEventListener("toggle", watch);
  document.addEventListener("visibilitychange", watch);
  watch();
}
