// The images of the form: dropped, pasted or chosen.
import { $, complain, el } from "./dom.js";

const MAX_BYTES = 20_000_000;
export let images = [];

export function setImages(urls) {
  images = urls;
  $("thumbs").replaceChildren(...images.map((url, n) => el("span", {}, el("img", { src: url, alt: `image ${n + 1}` }),
    el("button", { type: "button", ariaLabel: `Remove image ${n + 1}`, onclick: () => setImages(images.filter((_, m) => m !== n)) }))));
}
async function addFiles(files) {
  complain("");
  for (const file of files) {
    if (!file.type.startsWith("image/")) complain(`${file.name} is not an image.`);
    else if (file.size > MAX_BYTES) complain(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; images may have 20 MB. Resize it first.`);
    else {
      const reader = new FileReader();
      await new Promise(done => { reader.onload = reader.onerror = done; reader.readAsDataURL(file); });
      if (reader.result) setImages([...images, reader.result]); else complain(`${file.name} cannot be read.`);
    }
  }
}
export async function shrink(url) {  // what the history keeps of an image
  if (url.length < 20_000) return url;
  const image = el("img", { src: url });
  try { await image.decode(); } catch { return ""; }
  const scale = 96 / Math.max(image.naturalWidth, image.naturalHeight);
  const canvas = el("canvas", { width: Math.max(1, image.naturalWidth * scale), height: Math.max(1, image.naturalHeight * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", .8);
}
$("files").onchange = event => { addFiles([...event.target.files]); event.target.value = ""; };
document.onpaste = event => event.clipboardData.files.length && (event.preventDefault(), addFiles([...event.clipboardData.files]));
document.ondragover = event => event.dataTransfer.types.includes("Files") && (event.preventDefault(), document.body.classList.add("over"));
document.ondragleave = event => event.relatedTarget || document.body.classList.remove("over");
document.ondrop = event => {
  document.body.classList.remove("over");
  if (event.dataTransfer.files.length) event.preventDefault(), addFiles([...event.dataTransfer.files]);
};
