export { EditorView, keymap, lineNumbers, drawSelection, highlightActiveLine } from "@codemirror/view";
export { EditorState, Compartment, Text } from "@codemirror/state";
export { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
export { json } from "@codemirror/lang-json";
export { syntaxHighlighting, HighlightStyle, bracketMatching, foldGutter, foldKeymap, indentOnInput } from "@codemirror/language";
export { tags } from "@lezer/highlight";
export { lintGutter, setDiagnostics, lintKeymap } from "@codemirror/lint";
export { search, searchKeymap } from "@codemirror/search";
export { Chunk } from "@codemirror/merge";
