// Follows the operators of a step while they are those of a score, without a call of Python for each.
//
// torch tells observers of every call of an operator, with what goes in and what comes out. Those that
// a dispatch mode would see are compared with the score; what they wrote is held until it is scanned,
// or scanned here when it lies in memory of the CPU. Python is called to launch a scan on a GPU, and,
// from the first operator on that the score does not say, for each that is left of the step.
//
// A mode sees what is called below autograd. An observer sees calls at the top, and the calls within
// them. So calls of composite operators are looked through (and of those that autocast wraps), and
// what any other operator calls is not looked at. Where that guess is wrong, the step is another one
// than the score's: slower, never unseen.
//
// An operator that raises is told of at its end as well, while the exception is on its way and Python
// may have its error set: Python is not called then, or the program would lose the error. Torch's own
// checkpoints raise such a one in every step, to end what they compute again.
//
// Without Python's headers: tensors travel through operators of torch, all else through C functions.
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "follow_operator.h"

namespace {

using Tensors = std::vector<at::Tensor>;

// As `struct scan` of scan.c has them.
struct Scan {
  uint64_t hash, count, zeros, like_first, unchanged, first_bits, any_bits;
};
using ScanMemory = void (*)(const void*, const void*, size_t, int, Scan*);
using Flush = void (*)(int64_t);
using OutOfTurn = void (*)(const char*, const char*);
using Afterwards = void (*)();

struct Output {
  int64_t place, numel, kind, cpu, row, count, bits;
};

struct Turn {
  const Operator* op = nullptr;
  int64_t flush_before = -1, flush_after = -1;
  std::vector<Output> outputs;
};

struct Score {
  std::vector<Turn> turns;
};

struct Row {
  int64_t row, hash, zeros, like_first, any_bits;
};

enum Kind : char { THROUGH, HIDDEN, FOLLOWED, STRANGE };

struct Open {
  Kind kind;
  int exceptions;  // on their way when it began
};

struct State {
  std::vector<std::unique_ptr<Score>> scores;
  Score* score = nullptr;
  bool active = false;
  bool following = false;  // the operators so far were those of the score
  std::thread::id owner;
  size_t at = 0;
  std::vector<Open> open;  // the calls under way, outermost first
  size_t hidden = 0;       // those of them whose insides are not looked at
  Tensors held, written, results;
  std::vector<Row> rows;
  at::CallbackHandle handle = 0;
  bool observing = false;
  ScanMemory scan_memory = nullptr;
  Flush flush = nullptr;
  OutOfTurn out_of_turn = nullptr;
  Afterwards afterwards = nullptr;
};

State& state() {
  static State* the = new State();  // never destroyed: threads may outlive the library's own end
  return *the;
}

// What Python does when it is called is not the program's.
struct Hide {
  explicit Hide(State& now) : now(now) {
    now.hidden += 1;
  }
  ~Hide() {
    now.hidden -= 1;
  }
  State& now;
};

void collect(const c10::IValue& value, Tensors& into) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      into.push_back(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) {
        into.push_back(tensor);
      }
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) {
        into.push_back(item.toTensor());
      }
    }
  }
}

void collect_results(const at::RecordFunction& call, Tensors& into) {
  const auto& outputs = call.outputs();
  if (outputs.size() == 1) {
    collect(outputs[0], into);
    return;
  }
  for (const auto& value : outputs) {
    if (value.isTensor() && value.toTensor().defined()) {
      into.push_back(value.toTensor());
    }
  }
}

bool fits(const at::Tensor& tensor, const Output& output) {
  return tensor.numel() == output.numel && tensor.layout() == c10::kStrided &&
      static_cast<int64_t>(tensor.scalar_type()) == output.kind &&
      (output.cpu ? tensor.is_cpu() : tensor.is_cuda()) &&
      (tensor.is_contiguous() || tensor.is_non_overlapping_and_dense());
}

// Hold or scan what was written, if it is what the score says.
bool take(State& now, const Turn& turn) {
  Tensors all = now.written;
  for (const auto& result : now.results) {
    bool is_written = false;
    for (const auto& tensor : now.written) {
      is_written = is_written || tensor.is_same(result);
    }
    if (!is_written) {
      all.push_back(result);
    }
  }
  for (const auto& output : turn.outputs) {
    if (static_cast<size_t>(output.place) >= all.size() || !fits(all[output.place], output)) {
      return false;
    }
  }
  for (const auto& output : turn.outputs) {
    const auto& tensor = all[output.place];
    if (!output.cpu) {
      now.held.push_back(tensor);
      continue;
    }
    Scan scan{};
    now.scan_memory(
        tensor.data_ptr(), nullptr, static_cast<size_t>(output.count),
        static_cast<int>(output.bits), &scan);
    now.rows.push_back(
        {output.row, static_cast<int64_t>(scan.hash), static_cast<int64_t>(scan.zeros),
         static_cast<int64_t>(scan.like_first), static_cast<int64_t>(scan.any_bits)});
  }
  return true;
}

void collect_written(State& now, const at::RecordFunction& call, const Operator& op) {
  const auto inputs = call.inputs();
  for (const auto place : op.writes) {
    if (place < inputs.size()) {
      collect(inputs[place], now.written);
    }
  }
}

Kind begun(State& now, const at::RecordFunction& call) {
  const Operator* op = operator_of(call);
  if (op == nullptr || op->composite || casts(*op, call)) {
    return THROUGH;
  }
  const Turn* turn = nullptr;
  if (now.following && now.at < now.score->turns.size()) {
    turn = &now.score->turns[now.at];
  }
  const bool expected = turn != nullptr && turn->op == op;
  if (!expected && op->inert) {
    return HIDDEN;
  }
  now.written.clear();
  now.results.clear();
  collect_written(now, call, *op);
  const Hide hide(now);
  if (expected) {
    if (turn->flush_before >= 0) {
      now.flush(turn->flush_before);
    }
    return FOLLOWED;
  }
  now.following = false;
  now.out_of_turn(op->schema->name().c_str(), op->schema->overload_name().c_str());
  return STRANGE;
}

void ended(State& now, const at::RecordFunction& call, Kind kind) {
  collect_results(call, now.results);
  if (kind == FOLLOWED) {
    const auto& turn = now.score->turns[now.at];
    if (turn.outputs.empty() || take(now, turn)) {
      now.at += 1;
      if (turn.flush_after >= 0) {
        now.flush(turn.flush_after);
      }
      return;
    }
    now.following = false;
  }
  now.afterwards();
}

// What raised wrote nothing that is known of. The next operator tells Python where the score was left.
void raised(State& now, Kind kind) {
  if (kind != FOLLOWED) {
    return;
  }
  const auto& turn = now.score->turns[now.at];
  if (turn.outputs.empty() && turn.flush_after < 0) {
    now.at += 1;  // it is as the score says, or may as well be
  } else {
    now.following = false;
  }
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  State& now = state();
  if (now.owner != std::this_thread::get_id()) {
    return nullptr;
  }
  Kind kind = HIDDEN;  // also what destructors call while an exception is on its way
  const int exceptions = std::uncaught_exceptions();
  if (now.active && now.hidden == 0 && exceptions == 0) {
    kind = begun(now, call);
  }
  now.open.push_back({kind, exceptions});
  now.hidden += kind != THROUGH;
  return nullptr;
}

void on_end(const at::RecordFunction& call, at::ObserverContext*) {
  State& now = state();
  if (now.owner != std::this_thread::get_id() || now.open.empty()) {
    return;
  }
  const auto [kind, exceptions] = now.open.back();
  if (kind == FOLLOWED || kind == STRANGE) {
    if (std::uncaught_exceptions() > exceptions) {
      raised(now, kind);
    } else {
      ended(now, call, kind);
    }
    now.written.clear();
    now.results.clear();
  }
  now.open.pop_back();
  now.hidden -= kind != THROUGH;
}

}  // namespace

TORCH_LIBRARY(torchyard_follow, library) {
  library.def("take_held() -> Tensor[]", []() { return std::exchange(state().held, {}); });
  library.def("written() -> Tensor[]", []() { return state().written; });
  library.def("results() -> Tensor[]", []() { return state().results; });
  library.def("kind(Tensor one) -> int", [](const at::Tensor& one) {
    return static_cast<int64_t>(one.scalar_type());
  });
}

extern "C" {

void follow_set(ScanMemory scan_memory, Flush flush, OutOfTurn out_of_turn, Afterwards afterwards) {
  State& now = state();
  now.scan_memory = scan_memory;
  now.flush = flush;
  now.out_of_turn = out_of_turn;
  now.afterwards = afterwards;
}

int64_t follow_new_score() {
  State& now = state();
  now.scores.push_back(std::make_unique<Score>());
  return static_cast<int64_t>(now.scores.size()) - 1;
}

void follow_drop_score(int64_t score) {
  state().scores[score].reset();
}

// 0 when torch has no such operator. Each output is seven numbers, in the order of `Output`.
int follow_add_turn(
    int64_t score, const char* name, const char* overload, int64_t flush_before,
    int64_t flush_after, const int64_t* outputs, int64_t count) {
  Turn turn;
  turn.op = known(name, overload);
  if (turn.op == nullptr) {
    return 0;
  }
  turn.flush_before = flush_before;
  turn.flush_after = flush_after;
  for (const int64_t* one = outputs; one < outputs + 7 * count; one += 7) {
    turn.outputs.push_back({one[0], one[1], one[2], one[3], one[4], one[5], one[6]});
  }
  state().scores[score]->turns.push_back(std::move(turn));
  return 1;
}

// Without a score (-1) every operator is strange.
void follow_begin(int64_t score) {
  State& now = state();
  now.score = score < 0 ? nullptr : now.scores[score].get();
  now.owner = std::this_thread::get_id();
  now.at = 0;
  now.rows.clear();
  now.held.clear();
  now.open.clear();
  now.hidden = 0;
  if (!now.observing) {
    auto callback = at::RecordFunctionCallback(on_begin, on_end);
    callback.needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION});
    now.handle = at::addThreadLocalCallback(callback);
    now.observing = true;
  }
  now.active = true;
  now.following = now.score != nullptr;
}

// Stop; how many operators were as the score says. What is held stays until it is taken.
int64_t follow_end() {
  State& now = state();
  now.active = false;
  if (now.observing && now.owner == std::this_thread::get_id()) {
    at::removeCallback(now.handle);
    now.observing = false;
  }
  return static_cast<int64_t>(now.at);
}

int64_t follow_position() {
  return static_cast<int64_t>(state().at);
}

int64_t follow_rows() {
  return static_cast<int64_t>(state().rows.size());
}

// Five numbers for each row, in the order of `Row`.
void follow_take_rows(int64_t* into) {
  State& now = state();
  for (const auto& row : now.rows) {
    *into++ = row.row;
    *into++ = row.hash;
    *into++ = row.zeros;
    *into++ = row.like_first;
    *into++ = row.any_bits;
  }
  now.rows.clear();
}

}  // extern "C"
