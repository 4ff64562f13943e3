/* Copy buttons, and scripts that are read only when they are opened.
 *
 * Each element of class "copyable" gets a button that copies the text of its first <pre>.
 * Each <details class="script" data-script="URL"> fetches that URL into its <pre><code> when it is
 * first opened; the plain download link inside it works without any of this. */

const TOLD_MS = 4000;

const live = document.createElement("p");
live.className = "visually-hidden";
live.setAttribute("role", "status");

/** Put `text` on the clipboard; where the browser forbids it, mark it, so that Ctrl+C takes it. */
async function copy(pre) {
  try {
    await navigator.clipboard.writeText(pre.textContent.replace(/\n$/, ""));
    return "Copied";
  } catch {
    getSelection().selectAllChildren(pre);
    return "Marked: press Ctrl+C";
  }
}

function addButton(holder) {
  const pre = holder.querySelector("pre");
  if (!pre || holder.querySelector(":scope > button.copy")) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  const what = holder.dataset.copyName;
  if (what) button.setAttribute("aria-label", `Copy ${what}`);
  button.addEventListener("click", async () => {
    const told = await copy(pre);
    button.textContent = told;
    live.textContent = what ? `${told}: ${what}` : told;
    setTimeout(() => {
      button.textContent = "Copy";
      live.textContent = "";
    }, TOLD_MS);
  });
  holder.prepend(button);
}

async function fetchScript(details) {
  const code = details.querySelector("pre code") ?? details.querySelector("pre");
  code.textContent = "Reading the script ...";
  try {
    const answer = await fetch(details.dataset.script);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    code.textContent = await answer.text();
    details.dataset.read = "yes";
    addButton(details.querySelector(".copyable") ?? code.closest("pre").parentElement);
  } catch (error) {
    code.textContent = `The script could not be read (${error.message}). Use the download link, or close and open this again.`;
  }
}

document.body.append(live);
for (const holder of document.querySelectorAll(".copyable")) {
  if (!holder.closest("details.script")) addButton(holder);
}
for (const details of document.querySelectorAll("details.script[data-script]")) {
  details.addEventListener("toggle", () => {
    if (details.open && details.dataset.read !== "yes") fetchScript(details);
  });
}
