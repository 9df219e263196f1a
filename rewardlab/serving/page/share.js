// A judgment to take along: a link that holds it behind its #, which no browser sends to a server, a curl line, or JSON.
import { $ } from "./dom.js";
import { hasKey } from "./server.js";

const POLICIES = ["majority", "weighted", "sequential"], STRATEGIES = ["all_pairs", "circular", "knockout", "bradley_terry"];
const MARK = "#judgment=", MOST_CHARS = 5_000_000;

const squeeze = (data, stream) => new Blob([data]).stream().pipeThrough(stream);

async function linkOf(entry) {
  const packed = await new Response(squeeze(JSON.stringify(entry), new CompressionStream("deflate-raw"))).arrayBuffer();
  let bytes = "";
  for (const byte of new Uint8Array(packed)) bytes += String.fromCharCode(byte);
  const text = btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  return `${location.href.split("#")[0]}${MARK}${text}`;
}

export const isLink = hash => hash.startsWith(MARK);

// The judgment that a link holds. Raises Error for one that is damaged: anybody may have written it.
export async function readLink(hash) {
  try {
    const bytes = atob(hash.slice(MARK.length).replaceAll("-", "+").replaceAll("_", "/"));
    const packed = Uint8Array.from(bytes, byte => byte.charCodeAt(0));
    const reader = squeeze(packed, new DecompressionStream("deflate-raw")).pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let part = await reader.read(); !part.done; part = await reader.read())
      if ((text += part.value).length > MOST_CHARS) throw Error("too long");
    return checked(JSON.parse(text));
  } catch {
    throw Error("This link is damaged; ask for it again.");
  }
}

const isText = value => typeof value === "string";
const isNumber = value => typeof value === "number" && Number.isFinite(value);
const isListOf = (value, test, least = 0, most = 1e4) =>
  Array.isArray(value) && value.length >= least && value.length <= most && value.every(test);
const orNull = test => value => value === null || test(value);

function isVote(vote) {
  return ["given", "swapped"].includes(vote.order) && [0, 1, null].includes(vote.winner) && isText(vote.status)
    && isText(vote.text) && isText(vote.error)
    && isNumber(vote.num_tokens) && (vote.p_first_shown == null || isNumber(vote.p_first_shown));
}

function isMatch(size) {
  const isIndex = value => Number.isInteger(value) && value >= 0 && value < size;
  return ({ first, second, share_first: share, statuses }) =>
    isIndex(first) && isIndex(second) && orNull(isNumber)(share) && typeof (statuses ?? 0) === "object";
}

// An entry as the history has it, or an error.
function checked({ request, result, labels }) {
  const { question, responses, images, videos, votes, seed, policy, strategy } = request, size = responses.length;
  const isAsked = isText(question) && isListOf(responses, isText, 2, 32) && isListOf(images, isText) && isListOf(videos, isText)
    && isNumber(votes) && isNumber(seed) && isListOf(labels, label => isText(label) && /^\w+ [12AB]$/.test(label), 2, 2);
  const isKnown = POLICIES.includes(policy) && (size === 2 || STRATEGIES.includes(strategy));
  const isPair = size === 2 && isListOf(result.votes, isVote) && isText(result.outcome)
    && orNull(isNumber)(result.p_first_better);
  const isIndex = value => Number.isInteger(value) && value >= 0 && value < size;
  const isGroup = size > 2 && isListOf(result.rewards, orNull(isNumber), size, size)
    && isListOf(result.matches, isMatch(size)) && isListOf(result.deviations, orNull(isNumber), size, size)
    && isListOf(result.tiers, tier => isListOf(tier, isIndex))
    && isNumber(result.num_tokens) && isNumber(result.num_failed);
  if (!isAsked || !isKnown || !isNumber(result.seconds) || !(isPair || isGroup)) throw Error("not a judgment");
  return { request, result, labels };
}

const quoted = text => `'${text.replaceAll("'", `'\\''`)}'`;

// The request for a shell; the key is in a variable there, not in the line.
function curlOf({ request }) {
  const address = new URL(request.responses.length === 2 ? "v1/judge" : "v1/rewards", document.baseURI.split("#")[0]);
  const key = hasKey() ? ` \\\n  -H "Authorization: Bearer $REWARDLAB_KEY"` : "";
  const type = "-H 'Content-Type: application/json'";
  return `curl -s ${quoted(address.href)} \\\n  ${type}${key} \\\n  -d ${quoted(JSON.stringify(request))}`;
}

async function copy(text, name) {
  try {
    await navigator.clipboard.writeText(text);  // there is none where the page did not come by https or from this machine
    $("copied").textContent = `${name} copied.`;
  } catch {
    $("copying-text").value = text;
    $("copying").showModal();
    $("copying-text").select();
  }
}

export function offer(current) {
  const entry = () => (({ request, result, labels }) => ({ request, result, labels }))(current());
  $("copy-link").onclick = async () => copy(await linkOf(entry()), "Link");
  $("copy-curl").onclick = () => copy(curlOf(entry()), "Command");
  $("copy-json").onclick = () => copy(JSON.stringify(entry(), null, 2), "JSON");
  $("close-copying").onclick = () => $("copying").close();
}
