// Writes times as the reader does. Everything works without it.
const time = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const span = new Intl.RelativeTimeFormat(undefined, { numeric: "always" });

// Times in sentences of the server; those of today are without a day.
const UTC = /((?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC)/;

function markTimes(root) {
  const today = new Date().toISOString().slice(0, 10);
  for (const text of root.querySelectorAll("p:is(.done, .summary, .problem) .foreign:not(:has(*))")) {
    const parts = text.textContent.split(UTC).map((part, position) => {
      if (position % 2 === 0) return part;
      const element = document.createElement("time");
      element.dateTime = (part.includes("-") ? part : `${today} ${part}`).replace(" UTC", "Z").replace(" ", "T");
      element.textContent = part;
      return element;
    });
    text.replaceChildren(...parts);
  }
}

function fromNow(at) {
  const minutes = Math.round((at - Date.now()) / 60_000);
  if (Math.abs(minutes) < 100) return span.format(minutes, "minute");
  if (Math.abs(minutes) < 48 * 60) return span.format(Math.round(minutes / 60), "hour");
  return span.format(Math.round(minutes / (24 * 60)), "day");
}

function localize(root) {
  markTimes(root);
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) {
      element.title = element.textContent;
      element.textContent = time.format(at);
      if (element.closest(".until")) element.textContent += `, ${fromNow(at)}`;
    }
  }
}

localize(document);
// The element has new content.
document.addEventListener("content", (event) => localize(event.target));

// "/" leads to the search, unless somebody types.
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey;
  const search = document.querySelector("#find");
  if (event.key !== "/" || isTyping || !search) return;
  event.preventDefault();
  search.focus();
});

// A form that was refused is seen first, with why.
const again = document.querySelector("form[data-refused]");
if (again) {
  const why = document.querySelector("main > p.problem[role=alert]");
  if (why) again.prepend(why);
  (again.closest("details, section") ?? again).scrollIntoView();
}

const visitor = document.querySelector(".visitor .foreign")?.textContent;
const query = new URLSearchParams(location.search);
const isSaved = query.has("made");
if (isSaved) {
  // A reload must not take what is typed from now on for what was saved.
  for (const name of ["made", "done"]) query.delete(name);
  history.replaceState(null, "", `?${query}`);
}

// What was typed into a form with a name to keep it by stays in this tab until it is saved: it comes back after
// a session has ended, with what the page knew then, so that a change of others is noticed.
function keep(form, name) {
  const isKept = ({ name, type }) => name && (type !== "hidden" || ["etag", "revision"].includes(name));
  const fields = [...form.elements].filter(isKept);
  const bringBack = (typed) => {
    const discard = document.createElement("button");
    const notice = document.createElement("p");
    notice.className = "notice";
    notice.setAttribute("role", "status");
    discard.textContent = "Discard it";
    discard.addEventListener("click", () => {
      sessionStorage.removeItem(name);
      location.reload();
    });
    notice.append("Below is what you typed before. It was not saved. ", discard);
    form.before(notice);
    for (const field of fields) field.value = typed[field.name] ?? field.value;
  };
  const differs = (typed, { name, type, value }) => type !== "hidden" && name in typed && typed[name] !== value;
  try {
    if (isSaved) sessionStorage.removeItem(name);
    const typed = JSON.parse(sessionStorage.getItem(name) ?? "{}");
    if (fields.some((field) => differs(typed, field))) bringBack(typed);
  } catch {
    // Without a storage nothing is kept.
  }
  form.addEventListener("input", () => {
    try {
      sessionStorage.setItem(name, JSON.stringify(Object.fromEntries(fields.map(({ name, value }) => [name, value]))));
    } catch {
      // A text that has no room there is lost, as without scripts.
    }
  });
}

for (const form of document.querySelectorAll("form[data-keep], [data-keep] form")) {
  keep(form, `rlaas ${form.closest("[data-keep]").dataset.keep} ${visitor}`);
}
