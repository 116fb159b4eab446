// Which words belong together, from the attention between pieces of words.

const WORD_START = "\u2581"; // SentencePiece marks the blank before a word with it.
const MIN_SHARE_OF_BEST = 0.5;

/** The text as words and white space by turns: joined it is the text. */
export const split = (text) => text.match(/\s+|\S+/gu) ?? [];
const wordsIn = (text) => text.match(/\S+/gu) ?? [];

/** For each target word the numbers of its source words; null where pieces and text do not tally. */
export function linksOf(source, { text, source_pieces, target_pieces, attention }) {
  const sourceWords = wordNumbers(source_pieces);
  const targetWords = wordNumbers(target_pieces);
  if (!attention.length || !tally(sourceWords, source) || !tally(targetWords, text)) return null;
  const weights = summed(attention, targetWords, sourceWords);
  return weights.map((row) => {
    const best = Math.max(...row);
    return row.flatMap((weight, number) => (weight >= MIN_SHARE_OF_BEST * best ? [number] : []));
  });
}

/** The number of the word that each piece is part of. */
function wordNumbers(pieces) {
  let number = -1;
  return pieces.map((piece, place) => (number += place === 0 || piece.startsWith(WORD_START) ? 1 : 0));
}

const tally = (numbers, text) => numbers.length > 0 && numbers.at(-1) + 1 === wordsIn(text).length;

/** Attention between words: the sum over their pieces. */
function summed(attention, targetWords, sourceWords) {
  const weights = Array.from({ length: targetWords.at(-1) + 1 }, () => new Array(sourceWords.at(-1) + 1).fill(0));
  targetWords.forEach((target, row) => {
    sourceWords.forEach((source, column) => (weights[target][source] += attention[row][column]));
  });
  return weights;
}
