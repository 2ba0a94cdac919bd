// How a forked child ends whose parent has run ONNX Runtime.
#pragma once

namespace skipdec::runtime::onnxruntime {

// From now on, exit() in a forked child flushes the standard streams and ends the process before
// the handlers and static objects that are there already: ONNX Runtime's would wait for its
// threads, which do not exist in the child. Nothing changes in this process. Called again, it does
// nothing.
void end_forked_children_early();

}  // namespace skipdec::runtime::onnxruntime
