// Writes times as the reader does. Everything works without it.
const time = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

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

function localize(root) {
  markTimes(root);
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) {
      element.title = element.textContent;
      element.textContent = time.format(at);
    }
  }
}

localize(document);
// The element has new content.
document.addEventListener("content", (event) => localize(event.target));
