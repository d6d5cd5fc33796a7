"use strict";
// Data of the flow graph in the page. Field names as in values/report/flow_picture.py.
const NODE_FIELDS = ["operator", "path", "file", "line", "module", "backward", "calls", "bytes", "waste", "findings", "source", "outside", "group"];
const GROUP_FIELDS = ["module", "backward", "members", "bytes", "waste", "findings"];
const readFlow = (text) => {
  const data = JSON.parse(text);
  const textFields = ["operator", "path", "file", "module", "source"];
  const record = (fields, values) => Object.fromEntries(fields.map((field, index) => [field, values[index]]));
  const items = data.nodes.map((values) => {
    const item = record(NODE_FIELDS, values);
    for (const field of textFields) item[field] = data.texts[item[field]];
    item.title = item.operator;
    item.under = (item.file ? `${item.file.split("/").pop()}:${item.line}` : "") + (item.module ? ` · ${item.module.split(".").pop()}` : "");
    item.words = `${item.operator} ${item.path} ${item.file}:${item.line} ${item.module}`.toLowerCase();
    return item;
  });
  for (const values of data.groups) {
    const item = record(GROUP_FIELDS, values);
    item.title = data.texts[item.module];
    item.module = item.title;
    item.under = `${item.members} operator${item.members === 1 ? "" : "s"}${item.backward ? ", backward" : ""}`;
    item.words = item.title.toLowerCase();
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
