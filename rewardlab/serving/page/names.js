// What a judge calls the responses, in the letters of the page: its "Response 1" is the one shown first, B in one order.
// How the template of this server's judge names the two.
export const template = { labels: ["Response 1", "Response 2"] };
const SYNONYMS = ["Response", "Answer"];

// Parts of a text: strings, and { winner, place, original } where a response is named. `labels` are the template's two names
// of the responses, such as ["Response 1", "Response 2"].
export function named(text, order, labels) {
  const [first, second] = labels.map(label => label.split(" ").at(-1));
  const nouns = [...new Set([labels[0].split(" ")[0], ...SYNONYMS])].flatMap(noun => [noun, noun.toLowerCase()]);
  const label = `(?:${first}|${second})\\b`, noun = `\\b(?:${nouns.join("|")})`;
  const joint = "(?:,? (?:and|or|over|vs\\.?|versus|than) |, | ?[/&] ?)", mark = "[*\"']{0,2}";
  const inText = `(?<=${noun}(?:s|\\(s\\))?[ #*"']{0,3}(?:${label}${mark}${joint}${mark})?)${label}`;
  const verdict = `(?<=\\[\\[|\\\\boxed\\{|<answer>[ \\n]{0,3}|<\\|begin_of_box\\|>|"better_response": ?")${label}`;
  const lastLine = `(?<=^[ \\t]{0,9})${label}(?=[.\\s]{0,9}(?![^]))`;
  const pattern = new RegExp(`${inText}|${verdict}|${lastLine}`, "gm");
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const isFirst = match[0] === first;
    const winner = isFirst === (order === "given") ? 0 : 1;
    parts.push(text.slice(end, match.index), { winner, place: isFirst ? "first" : "second", original: match[0] });
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)].filter(part => part !== "");
}
