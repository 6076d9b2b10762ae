// Keeps the reader where they are: at the end while they follow it, else at what they read.

import { setAttribute } from "./dom.js";

const NEAR_END_PX = 60;
const NEAR_START_PX = 500;

/** @param onStart called when the reader comes near the beginning of what is loaded */
export function createScroll({ scroller, transcript, jump, onStart }) {
  let follows = true;
  let lastTop = 0;

  const gap = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;

  function look() {
    const isAtEnd = gap() < NEAR_END_PX;
    // Growing content never lets go of the end; only the reader's own way up does.
    if (isAtEnd) follows = true;
    else if (scroller.scrollTop < lastTop - 2) follows = false;
    lastTop = scroller.scrollTop;
    setAttribute(jump, "hidden", isAtEnd);
    if (scroller.scrollTop < NEAR_START_PX) onStart();
  }

  function toEnd() {
    follows = true;
    scroller.scrollTop = scroller.scrollHeight;
    lastTop = scroller.scrollTop;
  }

  scroller.addEventListener("scroll", look, { passive: true });
  jump.addEventListener("click", toEnd);
  // What grows without a render: a card that opens, a window that changes, the composer.
  new ResizeObserver(() => {
    if (follows) toEnd();
    else look();
  }).observe(transcript);
  new ResizeObserver(() => follows && toEnd()).observe(scroller);

  function firstInView() {
    const top = scroller.getBoundingClientRect().top;
    for (const row of transcript.children) {
      const box = row.getBoundingClientRect();
      if (box.bottom > top) return { row, at: box.top };
    }
    return null;
  }

  return {
    toEnd,
    /** Runs `change` and puts the reader back. */
    around(change) {
      const anchor = follows ? null : firstInView();
      change();
      if (follows) toEnd();
      else if (anchor?.row.isConnected) {
        scroller.scrollTop += anchor.row.getBoundingClientRect().top - anchor.at;
        lastTop = scroller.scrollTop;
      }
      setAttribute(jump, "hidden", gap() < NEAR_END_PX);
    },
    /** Whether everything that is loaded fits: then there is nothing to scroll to ask for more. */
    fits: () => scroller.scrollHeight <= scroller.clientHeight + NEAR_START_PX,
  };
}
