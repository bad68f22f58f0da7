// Checks the rules while they are typed: sends the form in the background when the typing pauses, and
// shows what the page would show below the text, which the server sends alone. Everything works without it, by the button.
// The edited text stays in this tab until it is published: it comes back after a session has ended.
const form = document.querySelector("#change");
const PAUSE_MS = 700;
const TIMEOUT_MS = 30_000;

if (form) {
  const text = form.querySelector("#rules");
  const visitor = document.querySelector(".visitor .foreign")?.textContent;
  const kept = `rlaas rules ${form.elements.project.value} ${visitor}`;
  let timer = 0;
  let request = null;

  function keep() {
    try {
      sessionStorage.setItem(kept, text.value);
    } catch {
      // A text that has no room there is lost, as without scripts.
    }
  }

  function bringBack() {
    const edited = sessionStorage.getItem(kept);
    if (document.querySelector("main > p.done")) sessionStorage.removeItem(kept);
    else if (edited !== null && edited !== text.value) {
      const notice = document.createElement("p");
      const discard = document.createElement("button");
      notice.className = "notice";
      notice.setAttribute("role", "status");
      discard.textContent = "Discard it";
      discard.addEventListener("click", () => {
        sessionStorage.removeItem(kept);
        location.reload();
      });
      notice.append("The text is the one that you edited before, and was not published. ", discard);
      form.before(notice);
      text.value = edited;
      checkSoon();
    }
  }

  function say(text) {
    const state = document.createElement("p");
    state.className = "hint";
    state.textContent = text;
    document.querySelector("#result").replaceChildren(state);
  }

  function check() {
    request?.abort();
    const own = new XMLHttpRequest();
    request = own;
    // A document as the response: the policy (trusted types) forbids to parse texts as HTML.
    own.open("POST", "change-check");
    own.setRequestHeader("Content-Type", "application/x-www-form-urlencoded");
    own.setRequestHeader("X-Console-Check", "1");
    own.responseType = "document";
    own.timeout = TIMEOUT_MS;
    own.onload = () => {
      if (own !== request) return;
      const fresh = own.response?.querySelector("#result");
      const result = document.querySelector("#result");
      if (!fresh) {
        say("Not checked: the server does not take the form any more. Load the page again: your text comes back.");
        return;
      }
      result.replaceChildren(...fresh.childNodes);
      result.dispatchEvent(new Event("content", { bubbles: true }));
    };
    own.onerror = own.ontimeout = () => {
      if (own === request) say("Not checked: no answer from the server. Type on, or use the button.");
    };
    own.send(new URLSearchParams(new FormData(form)));
  }

  function checkSoon() {
    clearTimeout(timer);
    request?.abort();
    request = null;
    say("Not checked yet.");
    timer = setTimeout(check, PAUSE_MS);
  }

  form.addEventListener("input", (event) => {
    if (event.target === text) keep();
    if (event.target.name === "reason") return;
    checkSoon();
  });
  bringBack();
}
