"use strict";
// Data of the flow graph in the page. Field names as in values/report/flow_picture.py.
const NODE_FIELDS = ["operator", "path", "file", "line", "module", "backward", "calls", "bytes", "waste", "findings", "source", "outside", "group", "lines", "kind"];
const GROUP_FIELDS = ["module", "backward", "members", "bytes", "waste", "findings", "kind", "file", "line", "source"];
const placeOf = (item) => (item.file ? `${item.file.split("/").pop()}:${item.line}` : "");
const readFlow = (text) => {
  const data = JSON.parse(text);
  const textFields = ["operator", "path", "file", "module", "source", "kind"];
  const record = (fields, values) => Object.fromEntries(fields.map((field, index) => [field, values[index]]));
  const items = data.nodes.map((values) => {
    const item = record(NODE_FIELDS, values);
    for (const field of textFields) item[field] = data.texts[item[field]];
    item.title = item.operator;
    const module = item.kind || item.module.split(".").pop();
    item.under = [placeOf(item), module].filter(Boolean).join(" · ");
    item.words = `${item.operator} ${item.path} ${item.file}:${item.line} ${item.module} ${item.kind}`.toLowerCase();
    return item;
  });
  for (const values of data.groups) {
    const item = record(GROUP_FIELDS, values);
    for (const field of ["module", "kind", "file", "source"]) item[field] = data.texts[item[field]];
    const count = `${item.members} operator${item.members === 1 ? "" : "s"}${item.backward ? ", backward" : ""}`;
    const isLine = item.line > 0;
    item.title = isLine ? placeOf(item) : item.kind || item.module;
    item.under = [isLine ? item.kind : item.kind && item.module, (isLine && item.source.trim()) || count].filter(Boolean).join(" · ");
    item.words = `${item.title} ${item.module} ${item.under}`.toLowerCase();
    items.push(item);
  }
  return { ...data, items };
};
const formatSize = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; Math.abs(bytes) >= 1024 && unit < units.length - 1; unit += 1) bytes /= 1024;
  return `${unit === 0 ? bytes : bytes < 100 ? bytes.toPrecision(3) : bytes.toFixed(0)} ${units[unit]}`;
};
