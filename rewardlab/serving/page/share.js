// A judgment to take along: a link that holds it behind its #, which no browser sends to a server, or its request for curl.
import { $, complain } from "./dom.js";
import { current, restore } from "./judging.js";
import { hasKey } from "./server.js";

const PREFIX = "#judgment=", MOST_CHARS = 5_000_000;
const LINK_NOTE = "From a link: anybody can have written it. Judge again to see what this server's judge says.";

const pipe = (data, stream) => new Blob([data]).stream().pipeThrough(stream);

async function linkOf({ request, result, labels }) {
  const text = JSON.stringify({ request, result, labels });
  const packed = new Uint8Array(await new Response(pipe(text, new CompressionStream("deflate-raw"))).arrayBuffer());
  const bytes = Array.from(packed, byte => String.fromCharCode(byte)).join("");
  const encoded = btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  return `${location.href.split("#")[0]}${PREFIX}${encoded}`;
}

// Show the judgment of the address, if it has one: anybody may have written it.
export async function showLink() {
  if (!location.hash.startsWith(PREFIX)) return;
  try {
    const bytes = atob(location.hash.slice(PREFIX.length).replaceAll("-", "+").replaceAll("_", "/"));
    const packed = Uint8Array.from(bytes, byte => byte.charCodeAt(0));
    const reader = pipe(packed, new DecompressionStream("deflate-raw")).pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let part = await reader.read(); !part.done; part = await reader.read())
      if ((text += part.value).length > MOST_CHARS) throw Error("too long");
    const entry = JSON.parse(text);
    if (!isJudgment(entry)) throw Error("not a judgment");
    restore(entry, LINK_NOTE);
  } catch {
    complain("This link is damaged; ask for it again.");
  }
}

const isListOf = (value, type, least = 0) =>
  Array.isArray(value) && value.length >= least && value.length <= 10_000 && value.every(item => typeof item === type);

// Whether the texts and lists of an entry are such; a number or a name that is none fails when it is shown.
function isJudgment({ request, result, labels }) {
  const { question, responses, images, videos } = request;
  return isListOf([question], "string") && isListOf(responses, "string", 2) && responses.length <= 32
    && isListOf(images, "string") && isListOf(videos, "string") && isListOf(labels, "string", 2)
    && labels.every(label => /^\w+ [12AB]$/.test(label)) && (responses.length > 2 || isListOf(result.votes, "object", 0))
    && (result.votes ?? []).every(({ status, text, error }) => isListOf([status, text, error], "string"));
}

// The request for a shell, which has the key in a variable.
function curlOf({ request }) {
  const quoted = text => `'${text.replaceAll("'", `'\\''`)}'`;
  const address = new URL(request.responses.length === 2 ? "v1/judge" : "v1/rewards", document.baseURI.split("#")[0]);
  const key = hasKey() ? ` \\\n  -H "Authorization: Bearer $REWARDLAB_KEY"` : "";
  const type = "-H 'Content-Type: application/json'";
  return `curl -s ${quoted(address.href)} \\\n  ${type}${key} \\\n  -d ${quoted(JSON.stringify(request))}`;
}

async function copy(text, name) {
  try {
    await navigator.clipboard.writeText(text);  // there is none if the page came neither by https nor from this machine
    $("copied").textContent = `${name} copied.`;
  } catch {
    $("copying-text").value = text;
    $("copying").showModal();
    $("copying-text").select();
  }
}

$("copy-link").onclick = async () => copy(await linkOf(current), "Link");
$("copy-curl").onclick = () => copy(curlOf(current), "Command");
