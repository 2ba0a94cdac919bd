// Ends forked children whose parent has run ONNX Runtime.
#pragma once

namespace skipdec::runtime::onnxruntime {

// From now on, exit() in a forked child flushes the standard streams and ends the process before it
// reaches existing handlers and static objects, because ONNX Runtime's would wait for threads that
// do not exist in the child. This process is not affected. Further calls do nothing.
void end_forked_children_early();

}  // namespace skipdec::runtime::onnxruntime
