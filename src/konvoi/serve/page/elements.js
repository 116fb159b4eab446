// Small things that every part of the page needs.

export const $ = (id) => document.getElementById(id);

/** Text is only ever set as text: what a user types never becomes markup. */
export function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** A problem and what helps; nothing hides it. */
export function showNotice(place, error) {
  place.hidden = !error;
  if (!error) return place.replaceChildren();
  const parts = [element("strong", "", error.problem ?? "Something went wrong on this page")];
  if (error.hint ?? error.message) parts.push(element("span", "", error.hint ?? error.message));
  place.replaceChildren(...parts);
}

export function showSeconds(place, seconds) {
  place.textContent = seconds === null ? "" : `${seconds.toLocaleString("en", { maximumSignificantDigits: 2 })} s`;
}

/** Fills a choice of models; it shows only where there is one to make. */
export function offer(select, models, nameOf) {
  select.replaceChildren(...models.map((model) => new Option(nameOf(model), model.name)));
  select.parentElement.hidden = models.length < 2;
}
