"""Tiresias-L as plainly as it can be said: no heap, no nodes, every job looked at each time.

Capacity is a number of GPUs, preemption is free. An independent twin of the engine for tests.
"""

from math import ceil


class PlainJob:
    def __init__(self, job_id, submit, gpus, duration):
        self.job_id, self.submit, self.gpus = job_id, submit, gpus
        self.left = duration
        self.ran = self.waited = 0
        self.is_running = False
        self.first_start = None


def finish_times(jobs, capacity, limits, *, order="running_first", knob=None, floor=0):
    """Finish of each job; times are whole units. ``jobs``: (job_id, submit, gpus, duration)."""
    coming = sorted((PlainJob(*row) for row in jobs), key=lambda job: (job.submit, job.job_id))
    queues = [[] for _ in range(len(limits) + 1)]
    finish, now = {}, 0
    while coming or any(queues):
        step = _next_event(coming, queues, limits, knob, floor, now)
        for job in (job for queue in queues for job in queue):
            if job.is_running:
                job.left -= step
                job.ran += step
            elif job.ran > 0:
                job.waited += step
        now += step
        _complete(queues, finish, now)
        while coming and coming[0].submit <= now:
            queues[0].append(coming.pop(0))
        while _move_one(queues, limits, knob, floor):
            pass
        _one_pass(queues, capacity, order, now)
    return finish


def _next_event(coming, queues, limits, knob, floor, now):
    times = [job.submit - now for job in coming[:1]]
    for index, queue in enumerate(queues):
        for job in queue:
            if job.is_running:
                times.append(job.left)
                if index < len(limits):
                    times.append(ceil(limits[index] / job.gpus) - job.ran)
            elif _may_be_promoted(job, index, knob):
                times.append(_wait_needed(job, knob, floor) - job.waited)
    return max(0, min(times))


def _may_be_promoted(job, index, knob):
    return knob is not None and index > 0 and job.ran > 0


def _wait_needed(job, knob, floor):
    return max(ceil(knob * job.ran), floor)


def _complete(queues, finish, now):
    for queue in queues:
        for job in list(queue):
            if job.is_running and job.left <= 0:
                queue.remove(job)
                finish[job.job_id] = now


def _move_one(queues, limits, knob, floor):
    """Demote or promote the first job, by number, that is due."""
    moves = []
    for index, queue in enumerate(queues):
        for job in queue:
            if index < len(limits) and job.ran * job.gpus >= limits[index]:
                moves.append((job.job_id, job, index, index + 1))
            elif (
                not job.is_running
                and _may_be_promoted(job, index, knob)
                and job.waited >= _wait_needed(job, knob, floor)
            ):
                moves.append((job.job_id, job, index, 0))
    if not moves:
        return False
    _, job, source, target = min(moves, key=lambda move: move[0])
    queues[source].remove(job)
    queues[target].append(job)
    if target == 0:
        job.ran = job.waited = 0
    return True


def _one_pass(queues, capacity, order, now):
    left = capacity
    chosen = set()
    for queue in queues:
        ordered = queue
        if order == "start_time":
            ordered = sorted(
                queue,
                key=lambda job: (job.first_start is None, job.first_start or 0, job.job_id),
            )
        for job in ordered:
            if job.gpus <= left:
                left -= job.gpus
                chosen.add(job.job_id)
    for queue in queues:
        for job in queue:
            job.is_running = job.job_id in chosen
            if job.is_running and job.first_start is None:
                job.first_start = now
        if order == "running_first":
            queue.sort(key=lambda job: not job.is_running)
