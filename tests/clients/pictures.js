// Two directories of pictures of the console, side by side on one page for a reviewer: those of the
// build before on the left, those of the build after on the right. BSD_PICTURES of tests/it writes them.
//
//   node tests/clients/pictures.js BEFORE AFTER PAGE.html
//
// The page refers to the pictures where they are. Those that differ come first; of those that are the
// same only the names are there.
"use strict";
const fs = require("node:fs");
const { dirname, join, relative, resolve } = require("node:path");

const escaped = (text) =>
  text.replace(/[&<>"]/g, (it) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[it]);

const namesIn = (directory) => fs.readdirSync(directory).filter((it) => it.endsWith(".png"));

// Each picture once: which of the two have it, and whether they are the same.
function compared(before, after) {
  const names = [...new Set([...namesIn(before), ...namesIn(after)])].sort();
  return names.map((name) => {
    const [old, now] = [before, after].map((directory) => {
      const file = join(directory, name);
      return fs.existsSync(file) ? { file, bytes: fs.readFileSync(file) } : undefined;
    });
    return { name, old, now, isSame: Boolean(old && now && old.bytes.equals(now.bytes)) };
  });
}

function page(pairs, place) {
  const picture = (it, name) => {
    const from = it && relative(dirname(resolve(place)), resolve(it.file));
    const source = from && escaped(from.split("/").map(encodeURIComponent).join("/"));
    return source ? `<img loading="lazy" src="${source}" alt="${name}">` : "<p>There is no such picture.</p>";
  };
  const pair = ({ name, old, now }) => {
    const text = escaped(name);
    return `<section><h2>${text}</h2><div><figure>${picture(old, `${text}, before`)}</figure>
<figure>${picture(now, `${text}, after`)}</figure></div></section>`;
  };
  const others = pairs.filter((it) => !it.isSame);
  const same = pairs.filter((it) => it.isSame);
  return `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>The console before and after</title>
<style>
body { font: 16px sans-serif; margin: 1rem; }
div { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; align-items: start; }
figure { margin: 0; } img { max-width: 100%; border: 1px solid #888; }
</style></head>
<body><h1>The console before (left) and after (right)</h1>
<p>${others.length} of ${pairs.length} pictures differ.</p>
${others.map(pair).join("\n")}
<h2>The same in both</h2>
<ul>${same.map(({ name }) => `<li>${escaped(name)}</li>`).join("\n")}</ul>
</body></html>
`;
}

const [before, after, place] = process.argv.slice(2);
if (!place) {
  console.error("usage: node pictures.js BEFORE AFTER PAGE.html");
  process.exit(2);
}
const pairs = compared(before, after);
fs.writeFileSync(place, page(pairs, place));
console.log(`${pairs.filter((it) => !it.isSame).length} of ${pairs.length} pictures differ: ${place}`);
