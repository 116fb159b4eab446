// Other ways to say a sentence: a list that opens under it.

import { split } from "./alignment.js";
import { element, showNotice } from "./elements.js";
import { alternativesOf } from "./service.js";

const NUM_ALTERNATIVES = 5;
let opened = null;

/** Opens the list inside the sentence's item; a second click closes it. */
export async function openAlternatives(item, model, source, current, choose) {
  close();
  const list = element("div", "alternatives", "Looking for other ways to say it\u2026");
  list.setAttribute("aria-live", "off");
  item.querySelector(".sentence").after(list);
  item.querySelector(".sentence").setAttribute("aria-expanded", "true");
  opened = item;
  try {
    // The search for several keeps more hypotheses than the one for the best: it may not find the same.
    const translations = [current, ...(await alternativesOf(model, source, NUM_ALTERNATIVES))];
    fill(list, distinct(translations), current.text, choose);
  } catch (error) {
    showNotice(list, error);
  }
}

/** Closes it, too: a sentence is a switch for its list. */
export function isOpenAt(item) {
  const isOpen = opened === item;
  if (isOpen) close();
  return isOpen;
}

function close() {
  opened?.querySelector(".alternatives")?.remove();
  opened?.querySelector(".sentence").setAttribute("aria-expanded", "false");
  opened = null;
}

/** Unless this place is inside. */
function closeUnless(place) {
  if (!opened?.contains(place)) close();
}

function distinct(translations) {
  const byText = new Map(translations.map((each) => [each.text, each]));
  return [...byText.values()].filter(({ text }) => text.trim());
}

function fill(list, translations, current, choose) {
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Other ways to say it");
  list.replaceChildren(...translations.map((translation) => option(translation, current, choose)));
  list.addEventListener("keydown", pressKey);
  list.addEventListener("focusout", ({ relatedTarget }) => relatedTarget && closeUnless(relatedTarget));
  (list.querySelector("[aria-selected=true]") ?? list.firstElementChild)?.focus();
}

function option(translation, current, choose) {
  const made = element("div", "alternative");
  made.append(...marked(translation.text, current));
  made.tabIndex = -1;
  made.setAttribute("role", "option");
  made.setAttribute("aria-selected", translation.text === current);
  made.addEventListener("click", () => (close(), choose(translation)));
  return made;
}

/** What is said otherwise stands out. */
function marked(text, current) {
  const known = new Set(split(current));
  return split(text).map((part) => (known.has(part) ? part : element("b", "", part)));
}

function pressKey(event) {
  const option = event.target;
  const actions = {
    ArrowDown: () => option.nextElementSibling?.focus(),
    ArrowUp: () => option.previousElementSibling?.focus(),
    Enter: () => option.click(),
    " ": () => option.click(),
    Escape: () => leave(option),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  actions[event.key]();
}

function leave(option) {
  const sentence = option.closest(".item").querySelector(".sentence");
  close();
  sentence.focus();
}

// A click elsewhere closes it, as with any menu.
addEventListener("pointerdown", ({ target }) => closeUnless(target));
