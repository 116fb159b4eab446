// The translated sentences: spans of words that light up with their counterparts, and open their alternatives.

import { linksOf, split } from "./alignment.js";
import { isOpenAt, openAlternatives } from "./alternatives.js";
import { $, element } from "./elements.js";

let modelName = () => "";
/** As shown: {source, space, translation, links}. */
let sentences = [];
/** What the user preferred, by model and source sentence: it stays while the rest of the text changes. */
const preferred = new Map();

export function startSentences(getModelName) {
  modelName = getModelName;
  const target = $("target");
  target.addEventListener("pointerover", ({ target: place }) => lightTarget(place.closest(".word")));
  target.addEventListener("pointerleave", unlight);
  target.addEventListener("focusout", unlight);
  target.addEventListener("click", ({ target: place }) => place.closest(".sentence") && open(indexOf(place)));
  target.addEventListener("keydown", pressKey);
  $("source").addEventListener("pointermove", lightSourceAt);
  $("source").addEventListener("pointerleave", unlight);
}

export const translatedText = () => sentences.map(({ translation, space }) => translation.text + space).join("");

export function placeSentence(index, { source, space, translations }) {
  const translation = preferred.get(keyOf(source)) ?? translations[0];
  sentences[index] = { source, space, translation, links: linksOf(source, translation) };
  const made = render(translation.text, space, true);
  const old = $("target").children[index];
  if (old) old.replaceWith(made);
  else $("target").append(made);
}

export function clearFrom(count) {
  sentences.length = Math.min(count, sentences.length);
  [...$("target").children].slice(count).forEach((child) => child.remove());
}

/** The mirror lies under what is typed, letter under letter: a text area itself cannot light up words. */
export function showPlainSource(text) {
  // The last line counts even when it is empty.
  $("mirror").textContent = `${text}\u200b`;
}

/** Once the answer belongs to the text that is there. */
export function linkSource() {
  const text = sentences.map(({ source, space }) => source + space).join("");
  if (text !== $("source").value) return;
  $("mirror").replaceChildren(...sentences.map(({ source, space }) => render(source, space, false)), "\u200b");
}

function render(text, space, isTarget) {
  const item = element("span", "item");
  const sentence = item.appendChild(element("span", "sentence"));
  let number = 0;
  for (const part of split(text)) {
    const isWord = part.trim() !== "";
    if (isWord) sentence.append(Object.assign(element("span", "word", part), { number: number++ }));
    else sentence.append(part);
  }
  if (isTarget && number) makeButton(sentence);
  item.append(element("span", "space", space));
  return item;
}

function makeButton(sentence) {
  sentence.tabIndex = 0;
  sentence.setAttribute("role", "button");
  sentence.setAttribute("aria-haspopup", "listbox");
  sentence.setAttribute("aria-expanded", "false");
}

const keyOf = (source) => `${modelName()}\n${source}`;
const itemOf = (place) => place.closest(".item");
const indexOf = (place) => [...itemOf(place).parentElement.children].indexOf(itemOf(place));
const wordsOf = (pane, index) => [...(pane.children[index]?.querySelectorAll(".sentence .word") ?? [])];

function lightTarget(word) {
  if (!word || !word.closest(".sentence")) return unlight();
  const index = indexOf(word);
  light(index, [word.number], sentences[index].links?.[word.number] ?? []);
}

function lightSourceAt({ clientX, clientY }) {
  const isSourceWord = (place) => place.className === "word" && $("mirror").contains(place);
  const word = document.elementsFromPoint(clientX, clientY).find(isSourceWord);
  if (!word) return unlight();
  const links = sentences[indexOf(word)].links ?? [];
  const targets = links.flatMap((sources, number) => (sources.includes(word.number) ? [number] : []));
  light(indexOf(word), targets, [word.number]);
}

function light(index, targets, sources) {
  unlight();
  for (const number of targets) wordsOf($("target"), index)[number]?.classList.add("lit");
  for (const number of sources) wordsOf($("mirror"), index)[number]?.classList.add("lit");
}

function unlight() {
  document.querySelectorAll(".lit").forEach((word) => word.classList.remove("lit"));
}

function pressKey(event) {
  if (!event.target.matches(".sentence")) return;
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) moveWord(event.target, step);
  else if (event.key === "Enter" || event.key === " ") open(indexOf(event.target));
  else return;
  event.preventDefault();
}

/** With the arrow keys from word to word; a screen reader is told what lights up. */
function moveWord(sentence, step) {
  const words = [...sentence.querySelectorAll(".word")];
  const before = words.findIndex((word) => word.classList.contains("lit"));
  const word = words[Math.min(Math.max(before + step, 0), words.length - 1)];
  lightTarget(word);
  const counterparts = [...$("mirror").querySelectorAll(".lit")].map((lit) => lit.textContent);
  $("word-status").textContent = `${word.textContent}: ${counterparts.join(" ") || "no counterpart"}`;
}

function open(index) {
  const item = $("target").children[index];
  if (isOpenAt(item)) return;
  const { source, translation } = sentences[index];
  openAlternatives(item, modelName(), source, translation, (choice) => prefer(index, choice));
}

function prefer(index, translation) {
  preferred.set(keyOf(sentences[index].source), translation);
  placeSentence(index, { ...sentences[index], translations: [translation] });
  $("target").children[index].querySelector(".sentence").focus();
}
