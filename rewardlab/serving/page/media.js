// The images and videos of the question, or of a response. A file is uploaded when it is judged; requests and links name it by
// its id.
import { $, complain, el } from "./dom.js";
import { ask } from "./server.js";

const itemOf = ({ kind, reference }) => ({ kind, reference, name: reference.slice(0, 60) });

export class Media {
  items = [];  // { kind, name, reference, file, preview }: without a reference it is still to be uploaded
  onChange = () => {};

  constructor(name, thumbs) { this.name = name; this.thumbs = thumbs; }

  set(items) {
    this.items = items;
    this.thumbs.replaceChildren(...items.map((item, n) => this.thumbnail(item, n)));
    this.onChange();
  }

  // Show the media of a request that came by a link, [{ kind, reference }]. Its uploads are fetched.
  setReferences(references) {
    this.set(references.map(itemOf));
    for (const item of this.items.filter(one => one.reference.startsWith("upload:")))
      ask(`v1/uploads/${item.reference.slice("upload:".length)}`).then(answer => answer.blob()).then(file => {
        item.preview = URL.createObjectURL(file);
        this.set(this.items);
      }, error => complain(error.message));
  }

  // { kind, reference } of each item; files that are not uploaded yet are uploaded. Raises RequestError.
  async references() {
    const items = this.items;
    await Promise.all(items.filter(item => !item.reference).map(upload));
    return items.map(({ kind, reference }) => ({ kind, reference }));
  }

  addFiles(files) {
    const [media, others] = [[], []];
    for (const file of files) (/^(image|video)\//.test(file.type) ? media : others).push(file);
    complain(others.map(file => `${file.name} is neither an image nor a video.`).join(" "));
    this.set([...this.items, ...media.map(file => (
      { kind: file.type.split("/")[0], name: file.name, reference: "", file, preview: URL.createObjectURL(file) }))]);
  }

  thumbnail(item, n) {
    const what = `${item.kind} ${n + 1}${this.name}`;
    const remove = el("button", { type: "button", className: "remove", ariaLabel: `Remove ${what}`,
      onclick: () => this.set(this.items.filter(other => other !== item)) }, "×");
    return el("span", { className: "thumb" }, item.preview ? picture(item, what) : tag(item), remove);
  }
}

export const questionMedia = new Media("", $("thumbs"));

async function upload(item) {
  const headers = { "Content-Type": item.file.type };
  try {
    item.reference = `upload:${(await (await ask("v1/uploads", { method: "POST", body: item.file, headers })).json()).id}`;
  } catch (error) {
    error.message = `${item.name}: ${error.message}`;
    throw error;
  }
}

// A video, or a small picture, which a press makes large, and small again.
function picture(item, what) {
  if (item.kind === "video") return el("video", { src: item.preview, muted: true, controls: true, title: item.name });
  return el("button", { type: "button", className: "open", ariaLabel: `Resize ${what}`, title: item.name,
    onclick: ({ currentTarget }) => currentTarget.classList.toggle("large") }, el("img", { src: item.preview, alt: "" }));
}

// Media that the server fetches: the page loads nothing from elsewhere.
function tag({ kind, reference }) {
  const isUrl = /^https?:\/\//.test(reference);
  const name = isUrl ? el("a", { href: reference, target: "_blank", rel: "noreferrer noopener" }, reference) : reference;
  return el("span", { className: "tag" }, `${kind}: `, name);
}

function addReference() {
  const reference = $("reference").value.trim();
  complain("");
  if (!/^(https?:\/\/.|upload:.|media:.|data:.)/.test(reference))
    return complain("A reference is a URL (https://…), upload:ID or media:NAME.");
  questionMedia.set([...questionMedia.items, itemOf({ kind: $("reference-kind").value, reference })]);
  $("reference").value = "";
}

// A field for files, which goes to `media`.
export function takeFiles(input, media) {
  input.onchange = () => { media.addFiles(input.files); input.value = ""; };
}

// Files that are dropped or pasted on a response are its own; those elsewhere are the question's.
const mediaAt = ({ target }) => target.closest?.(".response")?.media ?? questionMedia;

takeFiles($("files"), questionMedia);
$("add-reference").onclick = addReference;
$("reference").onkeydown = event => event.key === "Enter" && (event.preventDefault(), addReference());
document.onpaste = event => {
  if (event.clipboardData.files.length) event.preventDefault(), mediaAt(event).addFiles(event.clipboardData.files);
};
document.ondragover = event => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); };
document.ondrop = event => {
  if (event.dataTransfer.files.length) event.preventDefault(), mediaAt(event).addFiles(event.dataTransfer.files);
};
