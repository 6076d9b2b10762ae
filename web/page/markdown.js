// Markdown, as far as models use it in a chat: text -> blocks -> (elsewhere) nodes.
//
// The text is hostile: this module only ever says "here stands text, bold, a link to this checked
// address"; nothing of it can become markup, because the other side builds nodes and never HTML.
// It takes time linear in the text: every search has a bound or remembers that it failed.

const LINK_TEXT_MAX = 500;
const URL_MAX = 2048;
const DEPTH_MAX = 6;
const CELLS_MAX = 24;

/**
 * Blocks: `{type: "p" | "heading" | "code" | "quote" | "list" | "table" | "rule", raw, ...}`.
 * `raw` is the source of the block: equal sources give equal blocks.
 */
export function parseMarkdown(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const start = at;
    const block = readBlock(lines, at, depth);
    at = block.next;
    delete block.next;
    block.raw = lines.slice(start, at).join("\n");
    blocks.push(block);
  }
  return blocks;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return readCode(lines, at, fence);
  const heading = /^ {0,3}(#{1,6})[ \t]+(.*)$/.exec(line);
  if (heading) {
    const text = heading[2].replace(/[ \t]#+[ \t]*$/, "");
    return { type: "heading", level: heading[1].length, inline: parseInline(text), next: at + 1 };
  }
  if (isRule(line)) return { type: "rule", next: at + 1 };
  if (depth < DEPTH_MAX && isQuote(line)) return readQuote(lines, at, depth);
  if (depth < DEPTH_MAX && itemOf(line)) return readList(lines, at, depth);
  if (isTableHead(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at, depth);
}

function fenceOf(line) {
  const found = /^( {0,3})(`{3,}|~{3,})(.*)$/.exec(line);
  if (!found || (found[2][0] === "`" && found[3].includes("`"))) return null;
  return { indent: found[1].length, mark: found[2], lang: found[3].trim().split(/\s+/)[0] ?? "" };
}

function readCode(lines, at, fence) {
  const body = [];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const trimmed = lines[next].trim();
    const closes = trimmed.length >= fence.mark.length && isAll(trimmed, fence.mark[0]);
    if (closes) return { type: "code", lang: fence.lang, text: body.join("\n"), closed: true, next: next + 1 };
    body.push(withoutIndent(lines[next], fence.indent));
  }
  return { type: "code", lang: fence.lang, text: body.join("\n"), closed: false, next };
}

function isAll(text, char) {
  for (const each of text) if (each !== char) return false;
  return true;
}

function isRule(line) {
  const marks = line.replace(/[ \t]/g, "");
  return marks.length >= 3 && /^[-*_]$/.test(marks[0]) && isAll(marks, marks[0]);
}

function isQuote(line) {
  return /^ {0,3}>/.test(line);
}

function readQuote(lines, at, depth) {
  const inner = [];
  let next = at;
  for (; next < lines.length && isQuote(lines[next]); next += 1) {
    inner.push(lines[next].replace(/^ {0,3}> ?/, ""));
  }
  return { type: "quote", blocks: parseMarkdown(inner.join("\n"), depth + 1), next };
}

function itemOf(line) {
  const found = /^( {0,12})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|)$/.exec(line);
  if (!found || isRule(line)) return null;
  const [, indent, mark, space = " ", rest = ""] = found;
  const ordered = mark.length > 1;
  const inner = indent.length + mark.length + (space.length > 4 ? 1 : space.length);
  return { indent: indent.length, inner, ordered, mark: mark.at(-1), start: parseInt(mark, 10), rest };
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function withoutIndent(line, most) {
  return line.slice(Math.min(most, indentOf(line)));
}

function readList(lines, at, depth) {
  const first = itemOf(lines[at]);
  const items = [];
  let next = at;
  while (next < lines.length) {
    const item = itemOf(lines[next]);
    const belongs = item && item.ordered === first.ordered && item.mark === first.mark;
    if (!belongs || item.indent > first.indent + 3 || item.indent < first.indent) break;
    const body = [item.rest];
    next += 1;
    while (next < lines.length) {
      const line = lines[next];
      if (line.trim() === "") {
        // A blank line stays inside only if what follows is indented into the item.
        const follower = nextFilled(lines, next);
        if (follower < 0 || indentOf(lines[follower]) < item.inner) break;
        body.push("");
        next = follower;
        continue;
      } else if (indentOf(line) >= item.inner) {
        body.push(withoutIndent(line, item.inner));
      } else if (itemOf(line) || startsBlock(lines, next) || lines[next - 1].trim() === "") {
        break;
      } else {
        body.push(line.trimStart());
      }
      next += 1;
    }
    items.push(parseMarkdown(body.join("\n"), depth + 1));
    const follower = nextFilled(lines, next);
    const goesOn = follower >= 0 && follower > next && itemOf(lines[follower]);
    if (goesOn && goesOn.ordered === first.ordered && goesOn.mark === first.mark) next = follower;
  }
  return { type: "list", ordered: first.ordered, start: first.start, items, next };
}

function nextFilled(lines, from) {
  for (let at = from; at < lines.length; at += 1) if (lines[at].trim() !== "") return at;
  return -1;
}

function startsBlock(lines, at) {
  const line = lines[at];
  return Boolean(fenceOf(line)) || /^ {0,3}#{1,6}[ \t]/.test(line) || isRule(line) || isQuote(line);
}

function cellsOf(line) {
  const cells = [];
  let cell = "";
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (text[at] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else cell += text[at];
  }
  if (cell.trim() !== "") cells.push(cell.trim());
  return cells;
}

function isTableHead(lines, at) {
  const rule = lines[at + 1];
  if (!lines[at].includes("|") || !rule?.includes("-") || !/^[\s|:-]+$/.test(rule)) return false;
  const head = cellsOf(lines[at]);
  const marks = cellsOf(rule);
  return head.length === marks.length && head.length <= CELLS_MAX && marks.every((m) => /^:?-+:?$/.test(m));
}

function readTable(lines, at) {
  const head = cellsOf(lines[at]);
  const align = cellsOf(lines[at + 1]).map((mark) => {
    if (mark.endsWith(":")) return mark.startsWith(":") ? "center" : "end";
    return "start";
  });
  const rows = [];
  let next = at + 2;
  for (; next < lines.length && lines[next].includes("|") && lines[next].trim() !== ""; next += 1) {
    const cells = cellsOf(lines[next]).slice(0, head.length);
    while (cells.length < head.length) cells.push("");
    rows.push(cells.map((cell) => parseInline(cell)));
  }
  return { type: "table", head: head.map((cell) => parseInline(cell)), align, rows, next };
}

function readParagraph(lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && lines[next].trim() !== "" && !startsBlock(lines, next)) {
    const item = depth < DEPTH_MAX ? itemOf(lines[next]) : null;
    // "1986. What a year" in running text is no list; a list that starts at 1 or with a mark is.
    if (item && item.rest !== "" && (!item.ordered || item.start === 1)) break;
    if (isTableHead(lines, next)) break;
    next += 1;
  }
  const text = lines.slice(at, next).map((line) => line.trim()).join("\n");
  return { type: "p", inline: parseInline(text), next };
}

/**
 * The address of a link if it is one that the page offers: http or https, without a user name in
 * front of the host (`https://bank.example@evil.example`). Else null.
 */
export function safeUrl(text) {
  if (text.length > URL_MAX || !/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    const plain = url.protocol === "http:" || url.protocol === "https:";
    return plain && url.username === "" && url.password === "" && url.hostname ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * Inline pieces: `{type: "text" | "code", text}`, `{type: "strong" | "em" | "del", inline}`,
 * `{type: "link", href, inline}`.
 */
export function parseInline(text, depth = 0) {
  const out = [];
  let plain = "";
  let at = 0;
  // Kinds of which no closing mark follows any more.
  const hopeless = new Set();
  const flush = () => {
    if (plain !== "") out.push({ type: "text", text: plain });
    plain = "";
  };
  while (at < text.length) {
    const found = depth > DEPTH_MAX ? null : readInline(text, at, depth, hopeless);
    if (found?.type === "skip") {
      plain += found.text;
      at = found.next;
    } else if (found) {
      flush();
      at = found.next;
      delete found.next;
      out.push(found);
    } else {
      plain += text[at];
      at += 1;
    }
  }
  flush();
  return out;
}

const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;

function readInline(text, at, depth, hopeless) {
  switch (text[at]) {
    case "\\":
      return PUNCTUATION.test(text[at + 1] ?? "") ? { type: "skip", text: text[at + 1], next: at + 2 } : null;
    case "`":
      return readCodeSpan(text, at, hopeless);
    case "*":
    case "_":
    case "~":
      return readEmphasis(text, at, depth, hopeless);
    case "!":
      // A picture from elsewhere is never loaded: it is offered as a link.
      return text[at + 1] === "[" ? readLink(text, at + 1, depth, hopeless) : null;
    case "[":
      return readLink(text, at, depth, hopeless);
    case "<":
      return readAngle(text, at);
    case "h":
    case "H":
      return readBareUrl(text, at);
    default:
      return null;
  }
}

function readCodeSpan(text, at, hopeless) {
  let width = 1;
  while (text[at + width] === "`") width += 1;
  const mark = text.slice(at, at + width);
  const kind = `\`${width}`;
  if (!hopeless.has(kind)) {
    let close = text.indexOf(mark, at + width);
    while (close >= 0) {
      let end = close + width;
      while (text[end] === "`") end += 1;
      if (end - close === width) {
        let code = text.slice(at + width, close);
        if (code.trim() !== "" && code.startsWith(" ") && code.endsWith(" ")) code = code.slice(1, -1);
        return { type: "code", text: code, next: close + width };
      }
      close = text.indexOf(mark, end);
    }
    hopeless.add(kind);
  }
  return { type: "skip", text: mark, next: at + width };
}

function readEmphasis(text, at, depth, hopeless) {
  const char = text[at];
  const isDouble = text[at + 1] === char;
  if (char === "~" && !isDouble) return null;
  const mark = isDouble ? char + char : char;
  const from = at + mark.length;
  if (hopeless.has(mark) || from >= text.length || /\s/.test(text[from])) return null;
  // Inside a word an underscore is part of a name.
  if (char === "_" && at > 0 && WORD.test(text[at - 1])) return null;
  for (let close = text.indexOf(mark, from); close >= 0; close = text.indexOf(mark, close + 1)) {
    if (close === from || /\s/.test(text[close - 1]) || text[close - 1] === "\\") continue;
    if (!isDouble && (text[close + 1] === char || text[close - 1] === char)) continue;
    if (isDouble && text[close + 2] === char) continue;
    if (char === "_" && WORD.test(text[close + mark.length] ?? "")) continue;
    const inline = parseInline(text.slice(from, close), depth + 1);
    const type = char === "~" ? "del" : isDouble ? "strong" : "em";
    return { type, inline, next: close + mark.length };
  }
  hopeless.add(mark);
  return isDouble ? { type: "skip", text: mark, next: from } : null;
}

function readLink(text, at, depth, hopeless) {
  // The next place where words could end and an address begin; searched once, then remembered.
  if (!(hopeless.middle >= at)) {
    const middle = text.indexOf("](", at);
    hopeless.middle = middle < 0 ? Infinity : middle;
  }
  if (hopeless.middle - at > LINK_TEXT_MAX) return null;
  let open = 0;
  let label = -1;
  const most = Math.min(text.length, at + LINK_TEXT_MAX);
  for (let index = at; index < most; index += 1) {
    if (text[index] === "[") open += 1;
    else if (text[index] === "]") {
      open -= 1;
      if (open === 0) {
        label = index;
        break;
      }
    } else if (text[index] === "\\") index += 1;
  }
  if (label < 0 || text[label + 1] !== "(") return null;
  let round = 1;
  let end = label + 2;
  const last = Math.min(text.length, end + URL_MAX);
  for (; end < last; end += 1) {
    if (text[end] === "(") round += 1;
    else if (text[end] === ")" && (round -= 1) === 0) break;
    else if (text[end] === "\n") return null;
  }
  if (text[end] !== ")") return null;
  const inside = text.slice(label + 2, end).trim();
  const href = safeUrl((/^<([^<>]*)>/.exec(inside)?.[1] ?? inside.split(/\s/)[0]) || "");
  if (!href) return null;
  const words = text.slice(at + 1, label).trim();
  return { type: "link", href, inline: withoutLinks(parseInline(words || href, depth + 1)), next: end + 1 };
}

/** A link inside the words of a link would be a link in a link. */
function withoutLinks(inline) {
  return inline.flatMap((piece) => {
    if (piece.type === "link") return withoutLinks(piece.inline);
    return piece.inline ? [{ ...piece, inline: withoutLinks(piece.inline) }] : [piece];
  });
}

function readAngle(text, at) {
  const end = text.slice(at, at + URL_MAX).indexOf(">");
  const href = end > 0 ? safeUrl(text.slice(at + 1, at + end)) : null;
  if (!href) return null;
  return { type: "link", href, inline: [{ type: "text", text: text.slice(at + 1, at + end) }], next: at + end + 1 };
}

function readBareUrl(text, at) {
  if (at > 0 && WORD.test(text[at - 1])) return null;
  if (!/^https?:\/\/[^\s]/i.test(text.slice(at, at + 9))) return null;
  let url = /^[^\s<>"`]+/.exec(text.slice(at, at + URL_MAX))[0];
  // The end of a sentence, and a bracket that was opened before the address, are not part of it.
  let unopened = count(url, ")") - count(url, "(");
  for (;;) {
    const last = url.at(-1);
    if (last === ")" && unopened > 0) unopened -= 1;
    else if (!/[.,;:!?'*_~\]]/.test(last)) break;
    url = url.slice(0, -1);
  }
  const href = safeUrl(url);
  if (!href) return null;
  return { type: "link", href, inline: [{ type: "text", text: url }], next: at + url.length };
}

function count(text, char) {
  let found = 0;
  for (const each of text) if (each === char) found += 1;
  return found;
}
