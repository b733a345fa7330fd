BEGIN TRANSACTION;
CREATE TABLE directives (
	job_id VARCHAR NOT NULL, 
	id INTEGER NOT NULL, 
	body JSON NOT NULL, 
	PRIMARY KEY (job_id, id)
);
INSERT INTO "directives" VALUES('job',1,'{"id": 1, "kind": "capture", "attempt": 1, "reason": "Rank 2 on host-1 has been in section ''step'' for 11.0 s, over its limit of 10 s (3 others too): it is behind within the same step, and the 3 other ranks wait for it.", "incident_id": "job-1000000-1", "deadline": 5.0, "stop_step": null, "settings": {}, "exclude": []}');
INSERT INTO "directives" VALUES('job',2,'{"id": 2, "kind": "restart", "attempt": 1, "reason": "Rank 2 on host-1 has been in section ''step'' for 11.0 s, over its limit of 10 s (3 others too): it is behind within the same step, and the 3 other ranks wait for it.", "incident_id": "job-1000000-1", "deadline": 5.0, "stop_step": null, "settings": {}, "exclude": []}');
CREATE TABLE incidents (
	id VARCHAR NOT NULL, 
	job_id VARCHAR NOT NULL, 
	opened_at FLOAT NOT NULL, 
	closed_at FLOAT, 
	body JSON NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "incidents" VALUES('job-1000000-1','job',1000021.0,1000024.0,'{"id": "job-1000000-1", "job_id": "job", "kind": "section_overrun", "attempt": 1, "opened_at": 1000021.0, "reason": "Rank 2 on host-1 has been in section ''step'' for 11.0 s, over its limit of 10 s (3 others too): it is behind within the same step, and the 3 other ranks wait for it.", "culprits": [{"rank": 2, "host": "host-1", "kind": "behind", "reason": "it is behind within the same step, and the 3 other ranks wait for it"}], "affected": [0, 1, 2, 3], "section": "step", "limit": 10.0, "elapsed": 11.0, "action": "restart", "action_reason": "the policy says restart", "phase": "closed", "phase_since": 1000022.0, "outcome": "attempt 2 goes on at step 6; 3 steps were lost", "closed_at": 1000024.0, "timeline": {"since": 1000010.0, "detected": 1000021.0, "decided": 1000021.0, "captured": 1000021.0, "restarted": 1000022.0, "first_step": 1000023.5}, "steps_lost": 3, "launch": 0, "furthest_iteration": 8, "confirmed": true, "stop_step": null, "directive": 2, "ordered": false, "exclude": [], "excluded_anew": false, "refusals": [], "heard_nodes": ["node-0", "node-1"], "stacks": {"places": [{"ranks": "2", "frames": [["load_batch", "/srv/user/train.py", 41], ["main", "/srv/user/train.py", 90]], "process_state": "alive", "waits": false, "method": "py-spy", "note": ""}, {"ranks": "0-1,3", "frames": [["all_reduce", "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 2800], ["train_step", "/srv/user/train.py", 60], ["main", "/srv/user/train.py", 91]], "process_state": "alive", "waits": true, "method": "py-spy", "note": ""}], "failures": [], "fronts": []}}');
CREATE TABLE jobs (
	id VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	last_heard FLOAT NOT NULL, 
	policy JSON NOT NULL, 
	learned JSON NOT NULL, 
	body JSON NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "jobs" VALUES('job',1000000.0,1000041.0,'{"detection": true, "observe_only": false, "initial_heartbeat_timeout": 1800.0, "heartbeat_timeout": 300.0, "section_timeouts": {"step": 10.0}, "out_of_section_timeout": null, "silence_timeout": 60.0, "learn_timeouts": true, "learned_factor": 5.0, "learned_minimum": 10.0, "first_time_timeout": 1800.0, "confirmation_window": 60.0, "on_hang": "restart", "capture_deadline": 5.0, "stop_deadline": 60.0, "max_restarts": 3, "max_no_progress": 3, "straggler_detection": true, "straggler_reference": "robust", "straggler_slowdown": 0.05, "straggler_windows": 5, "straggler_windows_needed": 3, "straggler_alarms_per_day": 0.1, "on_straggler": "log", "calc_relative": true, "calc_individual": true, "relative_threshold": 0.7, "individual_threshold": 0.7, "kernel_timings": "auto", "profiling_interval": 0, "profiled_ranks": "all", "report_interval": 300.0, "num_gpu_perf_scores_to_print": 5}','{"sections": {}, "idle_longest": 0.0, "ranks": 4, "resumed": true, "loaded": {"sections": {}, "out_of_section": null, "initial_heartbeat": null, "heartbeat": null}}','{"name": "gpt", "world_size": 4, "attempt": 2, "attempt_since": 1000022.0, "restarts": 1, "launches": 0, "restarting_attempt": 1, "last_directive": 2, "last_incident": 1, "incident_counts": {"section_overrun": 1}, "ended": null, "stopping": null, "ledger": {"began": 1000000.0, "looked_at": 1000000.0, "settled_until": 1000000.0, "settled": {}, "minutes": [], "pending": [], "mark": null, "furthest": -1, "step_seconds": 0.0, "attempt": 0, "attempt_since": 1000000.0, "flags": [false, true, false, false]}, "nodes": [{"registration": {"node": "node-0", "host": "host-0", "launcher_pid": 10, "local_world_size": 2, "job_name": "gpt", "attempt": 0, "policy": {}, "facts": {}, "ft_state": {}}, "attempt": 2, "ranks": [0, 1], "ended": null, "role": "active", "role_reason": "", "lost": null, "former": [0, 1]}, {"registration": {"node": "node-1", "host": "host-1", "launcher_pid": 10, "local_world_size": 2, "job_name": "gpt", "attempt": 0, "policy": {}, "facts": {}, "ft_state": {}}, "attempt": 2, "ranks": [2, 3], "ended": null, "role": "active", "role_reason": "", "lost": null, "former": [2, 3]}]}');
CREATE TABLE messages (
	queue VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	job_id VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	body JSON NOT NULL, 
	PRIMARY KEY (queue, "key")
);
CREATE TABLE performances (
	job_id VARCHAR NOT NULL, 
	body JSON NOT NULL, 
	PRIMARY KEY (job_id)
);
CREATE TABLE transitions (
	number INTEGER NOT NULL, 
	job_id VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "transitions" VALUES(1,'job',1000041.0,'hung','old');
CREATE INDEX incidents_of_job ON incidents (job_id, opened_at);
CREATE INDEX transitions_of_job ON transitions (job_id, at);
COMMIT;
