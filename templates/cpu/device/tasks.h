// The one way work is shared out between threads.
#pragma once

#include "sizes.h"

namespace moegen {

/// Calls `task(i)` for i in [0, count). Tasks write disjoint bytes, so results do not depend on `threads`.
template <class Task>
void parallel_tasks(Index count, Index threads, const Task& task) {
  const int team = static_cast<int>(minimum(threads, count));
#pragma omp parallel for schedule(dynamic, 1) num_threads(team) if (team > 1)
  for (Index i = 0; i < count; ++i) {
    task(i);
  }
}

/// Largest of the integers `value(i)` over [0, count), at least 0. Does not depend on `threads`: maxima commute.
template <class Value>
std::int32_t parallel_maximum(Index count, Index threads, const Value& value) {
  const int team = static_cast<int>(minimum(threads, count));
  std::int32_t largest = 0;
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1) reduction(max : largest)
  for (Index i = 0; i < count; ++i) {
    const std::int32_t candidate = value(i);
    largest = candidate > largest ? candidate : largest;
  }
  return largest;
}

}  // namespace moegen
