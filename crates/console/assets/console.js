// Writes times as the reader does. Everything works without it.
const time = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const span = new Intl.RelativeTimeFormat(undefined, { numeric: "always" });

// Times in the sentence that says what was done.
const UTC = /(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)/;

function markTimes(root) {
  for (const text of root.querySelectorAll("p.done > .foreign:not(:has(*))")) {
    const parts = text.textContent.split(UTC).map((part, position) => {
      if (position % 2 === 0) return part;
      const element = document.createElement("time");
      element.dateTime = part.replace(" UTC", "Z").replace(" ", "T");
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
