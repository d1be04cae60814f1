// Package scaling decides how many workers and batchers a pool has. It is pure: no client, no clock, no
// goroutine; the caller passes the instant, and the simulator runs the very same code.
//
// With B the largest batch, S the service time of a batch, g the gap between two, M the Ready workers:
//
//	c       = B / (S + g)                          requests/s of one worker
//	mu      = M · c                                capacity
//	u       = offered / mu                         utilization: slots, never busy time
//	backlog = depth / mu                           a time
//	demand  = offered + depth / coldStart          the queue is worked off while the new workers start
//	needed  = ceil(demand / (c · target))
//	step up = max(0, needed + warm - M - starting)
//
// Up when u > AbovePercent for UpWindow, or at once when backlog > threshold or u > 102 % at two scrapes. (The
// last is for pools whose queue stays short because admission refuses what would miss its deadline: simulated,
// a step to twice the capacity kept the backlog under 300 ms, and half of the load was refused for the whole
// up window before a worker was added.) Down by one when
// u < BelowPercent for all of DownWindow on complete data and the rest would stay under AbovePercent.
//
// Warm workers are set aside: with w of them, u and the checks speak of M - w workers.
//
// What keeps the number still:
//
//   - Starting workers are supply. While any is on its way, more are added only if the load would put Ready
//     and starting ones together above AbovePercent: a step to 3x is answered with the right number at once
//     and then left alone for the whole cold start, a second step is answered at once too.
//   - The up timer runs backwards while u is below the line by less than 10 %, and starts again when it is
//     further below: noise of 5 % around the line neither fires it nor keeps a real overload from firing it.
//   - A removal is judged by the highest offered rate of the whole down window, not by the last sample.
package scaling
