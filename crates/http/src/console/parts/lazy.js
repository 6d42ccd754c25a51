// What is long is drawn when it comes into view, and stays drawn then.
import { useEffect, useRef, useState } from "../vendor/preact.js";

/** How far out of view drawing begins, so that a keyboard's user who moves on finds the next place there. */
const AHEAD = "1500px";
const waiting = new WeakMap();
let observer = null;

/** Whether something is to be drawn, at once or when it is seen, and the reference for what stands in its place until then. */
export function useSeen(isAtOnce) {
  const [, setSeen] = useState(false);
  const box = useRef(null);
  const seen = useRef(false);
  const isSeen = (seen.current ||= Boolean(isAtOnce()));
  useEffect(() => {
    if (isSeen || !box.current) return undefined;
    observer ??= new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) waiting.get(entry.target)?.();
    }, { rootMargin: AHEAD });
    const element = box.current;
    waiting.set(element, () => { seen.current = true; setSeen(true); });
    observer.observe(element);
    return () => observer.unobserve(element);
  });
  return [isSeen, box];
}

const weights = new WeakMap();
/** How many values there are in a value. */
export function weight(value) {
  if (!(value instanceof Map || Array.isArray(value))) return 1;
  if (!weights.has(value)) {
    let sum = 1;
    for (const item of value.values()) sum += weight(item);
    weights.set(value, sum);
  }
  return weights.get(value);
}
