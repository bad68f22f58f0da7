// Finds rules while a part of their name is typed: loads the list when the typing pauses, and replaces it.
// Everything works without it, by the button.
const form = document.querySelector("#search");
const PAUSE_MS = 200;
const TIMEOUT_MS = 10_000;
let timer = 0;
let request = null;

function find() {
  const filled = [...new FormData(form)].filter(([, value]) => value !== "");
  const url = `rules?${new URLSearchParams(filled)}`;
  request?.abort();
  request = new XMLHttpRequest();
  const own = request;
  // A document as the response: the policy (trusted types) forbids to parse texts as HTML.
  own.open("GET", url);
  own.responseType = "document";
  own.timeout = TIMEOUT_MS;
  own.onload = () => {
    const [old, fresh] = [document, own.response].map((one) => one?.querySelector("#found"));
    if (own !== request || !fresh) return;
    history.replaceState(null, "", url);
    old.replaceChildren(...fresh.childNodes);
    old.dispatchEvent(new Event("content", { bubbles: true }));
  };
  own.send();
}

form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(find, PAUSE_MS);
});
