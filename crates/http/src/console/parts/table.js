// The table of configs: only the rows in view are in the page. Arrows move through it, Enter opens a config.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { PAGE_ROWS } from "../lib/rows.js";

const ROW = 30;
/** Browsers draw no taller box; what lies behind it is found with a filter. */
const ROWS_MAX = 1_000_000;

/**
 * `columns` are { id, title, width, sort, cell(row) }; `rows` is a `Rows`; `sort` is { by, order }; `fresh` holds the keys
 * of rows that have just changed.
 */
export function Table({ label, rows, columns, sort, onSort, rowKey, rowHref, fresh }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [at, setAt] = useState(0);
  const { total } = rows.state.value;
  const known = Math.min(total ?? 0, ROWS_MAX);
  const first = Math.max(0, Math.floor(view.top / ROW) - 5);
  const last = Math.min(known, Math.ceil((view.top + view.height) / ROW) + 5);
  useEffect(() => rows.want(first, Math.max(last, first + Math.min(PAGE_ROWS, 40))), [rows, first, last, total]);
  useLayoutEffect(() => {
    const measure = () => setView({ top: box.current.scrollTop, height: box.current.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => { box.current.scrollTop = 0; setAt(0); }, [rows]);
  function move(to) {
    const next = Math.max(0, Math.min(known - 1, to));
    setAt(next);
    const [top, bottom] = [next * ROW, (next + 2) * ROW];
    const node = box.current;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (bottom > node.scrollTop + node.clientHeight) node.scrollTop = bottom - node.clientHeight;
  }
  function onKey(event) {
    const page = Math.max(1, Math.floor(view.height / ROW) - 2);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: known - 1 }[event.key];
    if (event.target !== box.current) return;
    if (to !== undefined) { move(to); event.preventDefault(); }
    if (event.key === "Enter" && rows.row(at)) location.hash = rowHref(rows.row(at));
  }
  const template = columns.map((column) => column.width ?? "minmax(7rem, 1fr)").join(" ");
  const arrows = { asc: "▲", desc: "▼" };
  const shownRows = [];
  for (let place = first; place < last; place += 1) {
    const row = rows.row(place);
    const name = row && rowKey(row);
    shownRows.push(html`<div key=${name ?? place} role="row" aria-rowindex=${place + 2} class=${`row ${place === at ? "at" : ""} ${fresh?.has(name) ? "fresh" : ""}`}
      style=${{ transform: `translateY(${place * ROW}px)`, gridTemplateColumns: template }}
      onClick=${(event) => { setAt(place); if (row && !event.target.closest("a") && !getSelection().toString()) location.hash = rowHref(row); }}>
      ${row ? columns.map((column) => html`<div role="cell" class=${column.class}>${column.cell(row)}</div>`)
        : columns.map((column, i) => html`<div role="cell" class="muted">${i === 0 ? "…" : ""}</div>`)}</div>`);
  }
  return html`<div class="table" role="table" aria-label=${label} aria-rowcount=${known + 1} tabindex="0" ref=${box} style=${{ "--width": `${12 + 8 * columns.length}rem` }} onKeyDown=${onKey}
    onScroll=${() => setView({ top: box.current.scrollTop, height: box.current.clientHeight })}>
    <div role="rowgroup" class="head"><div role="row" aria-rowindex="1" class="row" style=${{ gridTemplateColumns: template }}>
      ${columns.map((column) => html`<div role="columnheader" class=${column.class} aria-sort=${sort.by === column.sort ? (sort.order === "asc" ? "ascending" : "descending") : undefined}>
        ${column.sort ? html`<button class="sort" onClick=${() => onSort(column.sort)}>${column.title} <span aria-hidden="true">${sort.by === column.sort ? arrows[sort.order] : ""}</span></button>` : column.title}</div>`)}
    </div></div>
    <div role="rowgroup" class="body" style=${{ height: `${known * ROW}px` }}>${shownRows}</div>
  </div>`;
}
