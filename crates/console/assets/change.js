// Checks the rules while they are typed: sends the form in the background when the typing pauses, and
// shows what the page would show below the text, which the server sends alone. Everything works without it, by the button.
const form = document.querySelector("#change");
const PAUSE_MS = 700;
const TIMEOUT_MS = 30_000;

if (form) {
  const text = form.querySelector("#rules");
  let timer = 0;
  let request = null;

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
    if (event.target.name === "reason") return;
    checkSoon();
  });
  // The text is one that was brought back.
  if (text.value !== text.defaultValue) checkSoon();
}
