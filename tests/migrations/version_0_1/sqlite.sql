BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0008');
CREATE TABLE api_keys (
	id VARCHAR(16) NOT NULL, 
	user_id INTEGER NOT NULL, 
	secret_sha256 BLOB NOT NULL, 
	created_at DOUBLE NOT NULL, 
	revoked_at DOUBLE, 
	CONSTRAINT pk_api_keys PRIMARY KEY (id), 
	CONSTRAINT fk_api_keys_user_id_users FOREIGN KEY(user_id) REFERENCES users (id)
);
INSERT INTO "api_keys" VALUES('99e60437f2c541f4',1,X'87909BBFC19C80F587FB941D044E7C943F0A55BCA7289FBF3ED50B87DBEE9ABC',1.79541681903198671339e+09,NULL);
CREATE TABLE "artifacts" (
	experiment_id VARCHAR(32) NOT NULL, 
	file VARCHAR(200) NOT NULL, 
	seq INTEGER NOT NULL, 
	media_type VARCHAR(100) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	attempt INTEGER NOT NULL, 
	CONSTRAINT pk_artifacts PRIMARY KEY (experiment_id, file), 
	CONSTRAINT fk_artifacts_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (id)
);
CREATE TABLE blocks (
	series_id INTEGER NOT NULL, 
	first_seq INTEGER NOT NULL, 
	last_seq INTEGER NOT NULL, 
	count INTEGER NOT NULL, 
	x BLOB NOT NULL, 
	value BLOB NOT NULL, 
	std_err BLOB NOT NULL, 
	n BLOB NOT NULL, 
	reason BLOB NOT NULL, 
	reasons JSON NOT NULL, seq BLOB, 
	CONSTRAINT pk_blocks PRIMARY KEY (series_id, first_seq), 
	CONSTRAINT fk_blocks_series_id_series FOREIGN KEY(series_id) REFERENCES series (id)
);
INSERT INTO "blocks" VALUES(1,2,8,6,X'000000000000F03F00000000000000400000000000000840000000000000104000000000000014400000000000001840',X'20CB438A608DEFBFDA2554F83B09F0BFF4EC87834702F0BF4ABD9C448D84EEBF67E247530FDCF5BFC0BADA4B68D0F8BF',X'DA68E25919C1C33F1D2ACEA90333B63F8D336EB882D0BC3FEC11B6B28966A93FF6F296ADC52BB23F0000000000000000',X'000000000000104000000000000010400000000000001040000000000000104000000000000010400000000000001040',X'000000000000','[]',X'020000000300000004000000050000000600000008000000');
INSERT INTO "blocks" VALUES(2,3,3,1,X'000000000000F03F',X'7711B2A41CEDE3BF',X'2AD53DA65BB9583F',X'000000000070A740',X'00','[]',X'03000000');
INSERT INTO "blocks" VALUES(2,6,8,2,X'00000000000000400000000000000840',X'75C3206D71F8E3BF6682C2BBBFE9E3BF',X'EC66D5ED616B513FAAACF0EA253E4C3F',X'000000000070A740000000000070A740',X'0000','[]',X'0600000008000000');
INSERT INTO "blocks" VALUES(2,11,14,2,X'00000000000010400000000000001440',X'7C5422EBA7F6E3BF758FA5AE66F7E3BF',X'3342CEA9B613483F8B4518CA96D8453F',X'000000000070A740000000000070A740',X'0000','[]',X'0B0000000E000000');
INSERT INTO "blocks" VALUES(2,16,19,2,X'00000000000018400000000000001C40',X'460F35FF88FDE3BF98818BCC4200E4BF',X'7DEB215BA859433F8A1F6F9D8F5B413F',X'000000000070A740000000000070A740',X'0000','[]',X'1000000013000000');
INSERT INTO "blocks" VALUES(2,22,24,2,X'00000000000020400000000000002240',X'6930E3DFC6FEE3BFA2BFCCEE0301E4BF',X'99024C5CAE86403F10975FCE2D983F3F',X'000000000070A740000000000070A740',X'0000','[]',X'1600000018000000');
INSERT INTO "blocks" VALUES(2,27,30,2,X'00000000000024400000000000002640',X'2FC78DFB4401E4BFDD12D1AEBB0BE4BF',X'92558D030A123C3F6368FA4C21BF3B3F',X'000000000070A740000000000070A740',X'0000','[]',X'1B0000001E000000');
INSERT INTO "blocks" VALUES(2,32,32,1,X'0000000000002840',X'EBFE960B730EE4BF',X'66254AE4D4793A3F',X'000000000070A740',X'00','[]',X'20000000');
INSERT INTO "blocks" VALUES(2,35,38,2,X'0000000000002A400000000000002C40',X'03C8B2286C0EE4BFC30D5DA55414E4BF',X'D9E334106B23393FA424472F2B4E383F',X'000000000070A740000000000070A740',X'0000','[]',X'2300000026000000');
INSERT INTO "blocks" VALUES(2,40,43,2,X'0000000000002E400000000000003040',X'3C9E70608C1CE4BFD0F9E532E91BE4BF',X'78315CCDDDDA363F2640AB703788363F',X'000000000070A740000000000070A740',X'0000','[]',X'280000002B000000');
INSERT INTO "blocks" VALUES(2,46,46,1,X'0000000000003140',X'01F785901924E4BF',X'F0DE16AC046B353F',X'000000000070A740',X'00','[]',X'2E000000');
INSERT INTO "blocks" VALUES(2,48,51,2,X'00000000000032400000000000003340',X'CAE87E4A9D28E4BF2781CF773730E4BF',X'924C9470760A353F57A0525E5BC9343F',X'000000000070A740000000000070A740',X'0000','[]',X'3000000033000000');
INSERT INTO "blocks" VALUES(2,54,56,2,X'00000000000034400000000000003540',X'3B7A2EC17933E4BFEEADF8525836E4BF',X'650ED0EA9B6C343FC4839CC0AA7A333F',X'000000000070A740000000000070A740',X'0000','[]',X'3600000038000000');
INSERT INTO "blocks" VALUES(2,59,59,1,X'0000000000003640',X'B75D576A583EE4BF',X'2FCCC76F48B0323F',X'000000000070A740',X'00','[]',X'3B000000');
INSERT INTO "blocks" VALUES(2,62,67,3,X'000000000000374000000000000038400000000000003940',X'BFFEE3DB7541E4BFD71618FE734AE4BF9C7BD1626A55E4BF',X'3913BBA64993323FF1D87C48074C323F3365881C0FEA313F',X'000000000070A740000000000070A740000000000070A740',X'000000','[]',X'3E0000004000000043000000');
INSERT INTO "blocks" VALUES(2,70,72,2,X'0000000000003A400000000000003B40',X'E51835752A5CE4BFFFF22A601F62E4BF',X'B203398CCF3E313FCAA6ADC03BDF313F',X'000000000070A740000000000070A740',X'0000','[]',X'4600000048000000');
CREATE TABLE checkpoints (
	experiment_id VARCHAR(32) NOT NULL, 
	after_seq INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	file VARCHAR(500) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (experiment_id, after_seq, attempt), 
	CONSTRAINT fk_checkpoints_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (id)
);
INSERT INTO "checkpoints" VALUES('01a2072edea674d0a6eff7e95974d868',46,1,'1/000000000046-bcf68393c5e96644.safetensors','bcf68393c5e96644d8016750b8e612e15596a3b9c99db75085a1eab8c2084c3b',1.79541684432901287081e+09);
INSERT INTO "checkpoints" VALUES('01a2072edea674d0a6eff7e95974d868',60,1,'1/000000000060-9e74e7bf0417b8e4.safetensors','9e74e7bf0417b8e4b0fe67309c4b0fe347fff6006e36752812237ec68dfa9423',1.79541684488901805878e+09);
CREATE TABLE "datasets" (
	id VARCHAR(32) NOT NULL, 
	owner_id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	format VARCHAR(16) NOT NULL, 
	bytes BIGINT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	n INTEGER NOT NULL, 
	dim INTEGER, 
	arrays JSON, 
	columns JSON, 
	created_at DOUBLE NOT NULL, 
	copy INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_datasets PRIMARY KEY (id), 
	CONSTRAINT fk_datasets_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id), 
	CONSTRAINT uq_datasets_owner_id_sha256_format_copy UNIQUE (owner_id, sha256, format, copy)
);
INSERT INTO "datasets" VALUES('01a2072ebbd574ccb9a56ccbe21555d1',1,'rows.csv','csv',48,'486c681cedacbca6fcb70ec8ed2fceef8381a232bb847a801e494924ad1d8705',4,3,'null','["f0", "f1", "f2"]',1.79541683961401128764e+09,0);
CREATE TABLE events (
	id INTEGER NOT NULL, 
	experiment_id VARCHAR(32) NOT NULL, 
	at DOUBLE NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	data JSON NOT NULL, 
	seq INTEGER, 
	CONSTRAINT pk_events PRIMARY KEY (id), 
	CONSTRAINT fk_events_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (id), 
	CONSTRAINT uq_events_experiment_id_seq UNIQUE (experiment_id, seq)
);
INSERT INTO "events" VALUES(1,'01a2072ed6ee71848316f6be8b9a7967',1.79541683996098184582e+09,'status','{"status": "queued"}',NULL);
INSERT INTO "events" VALUES(2,'01a2072ed6ee71848316f6be8b9a7967',1.79541684000700855258e+09,'status','{"status": "dispatched", "dispatch_no": 1}',NULL);
INSERT INTO "events" VALUES(3,'01a2072ed6ee71848316f6be8b9a7967',1.79541684022599744795e+09,'status','{"status": "running", "attempt": 1, "worker": "vm:16086"}',NULL);
INSERT INTO "events" VALUES(4,'01a2072ed6ee71848316f6be8b9a7967',1.79541684131100463869e+09,'log','{"level": "info", "message": "torch 2.13.0+cpu on cpu, float64, 1 threads"}',1);
INSERT INTO "events" VALUES(5,'01a2072ed6ee71848316f6be8b9a7967',1.79541684142599105829e+09,'status','{"status": "succeeded", "attempt": 1}',NULL);
INSERT INTO "events" VALUES(6,'01a2072edea674d0a6eff7e95974d868',1.79541684189599466325e+09,'status','{"status": "queued"}',NULL);
INSERT INTO "events" VALUES(7,'01a2072edea674d0a6eff7e95974d868',1.79541684199999713902e+09,'status','{"status": "dispatched", "dispatch_no": 1}',NULL);
INSERT INTO "events" VALUES(8,'01a2072edea674d0a6eff7e95974d868',1.79541684203298830989e+09,'status','{"status": "running", "attempt": 1, "worker": "vm:16086"}',NULL);
INSERT INTO "events" VALUES(9,'01a2072edea674d0a6eff7e95974d868',1.79541684214998626713e+09,'log','{"level": "info", "message": "torch 2.13.0+cpu on cpu, float64, 1 threads"}',1);
INSERT INTO "events" VALUES(10,'01a2072ee3807b46abef8e8d2c02b895',1.79541684313698554032e+09,'status','{"status": "queued"}',NULL);
INSERT INTO "events" VALUES(11,'01a2072ee3b57638a280101908cd1ce5',1.79541684319001293183e+09,'status','{"status": "queued"}',NULL);
INSERT INTO "events" VALUES(12,'01a2072ee3b57638a280101908cd1ce5',1.79541684329200387001e+09,'status','{"status": "paused"}',NULL);
CREATE TABLE "experiments" (
	id VARCHAR(32) NOT NULL, 
	owner_id INTEGER NOT NULL, 
	name VARCHAR(200), 
	tags JSON NOT NULL, 
	note TEXT, 
	priority INTEGER NOT NULL, 
	spec JSON NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	desired_state VARCHAR(16) NOT NULL, 
	dispatch_no INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	lost INTEGER NOT NULL, 
	worker VARCHAR(200), 
	lease_expires_at DOUBLE, 
	created_at DOUBLE NOT NULL, 
	dispatched_at DOUBLE, 
	started_at DOUBLE, 
	finished_at DOUBLE, 
	last_seq INTEGER NOT NULL, 
	progress_done BIGINT, 
	progress_total BIGINT, 
	progress_unit VARCHAR(32), 
	failure_kind VARCHAR(16), 
	failure_message TEXT, 
	retry_of VARCHAR(32), 
	idempotency_key VARCHAR(200), 
	submission_sha256 VARCHAR(64), 
	queue VARCHAR(16), 
	CONSTRAINT pk_experiments PRIMARY KEY (id), 
	CONSTRAINT uq_experiments_owner_id_idempotency_key UNIQUE (owner_id, idempotency_key), 
	CONSTRAINT fk_experiments_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id)
);
INSERT INTO "experiments" VALUES('01a2072ed6ee71848316f6be8b9a7967',1,'ended','["a", "b"]','kept',0,'{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 6, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 4, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}','succeeded','run',1,1,0,'vm:16086',NULL,1.79541683995901060104e+09,1.79541684000499701502e+09,1.79541684009101533891e+09,1.79541684141001844409e+09,11,24,24,'masks',NULL,NULL,NULL,NULL,'5c9c93e33c221e26bb171b9615c798db09234968e329b3fb6528106462bac6a5','cpu');
INSERT INTO "experiments" VALUES('01a2072edea674d0a6eff7e95974d868',1,'running','[]',NULL,0,'{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 60, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 3000, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}','running','run',1,1,0,'vm:16086',1.79541684834799766543e+09,1.79541684189498877526e+09,1.79541684197501230234e+09,1.79541684201798152926e+09,NULL,73,81396,180000,'masks',NULL,NULL,NULL,NULL,'b14d368fd4a3db786e978d60ec167c0c554ae1d86f3747a521a7bf028b951b07','cpu');
INSERT INTO "experiments" VALUES('01a2072ee3807b46abef8e8d2c02b895',1,'queued','[]',NULL,0,'{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 6, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 4, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}','queued','run',0,0,0,NULL,NULL,1.79541684313698554032e+09,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'142b4197eb0cda83ded76a0908ed71e0276b20113b5b963de25ecade03fc981a',NULL);
INSERT INTO "experiments" VALUES('01a2072ee3b57638a280101908cd1ce5',1,'paused','[]',NULL,0,'{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 6, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 4, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}','paused','pause',0,0,0,NULL,NULL,1.79541684319001293183e+09,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'948b5292f4bc0b91c639fa4c09ec4806a7065110ab8329041c4c5c998442f596',NULL);
CREATE TABLE metrics (
	experiment_id VARCHAR(32) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	labels VARCHAR(1000) NOT NULL, 
	seq INTEGER NOT NULL, 
	value DOUBLE, 
	std_err DOUBLE, 
	reason VARCHAR(500), 
	CONSTRAINT pk_metrics PRIMARY KEY (experiment_id, name, labels), 
	CONSTRAINT fk_metrics_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (id)
);
INSERT INTO "metrics" VALUES('01a2072ed6ee71848316f6be8b9a7967','lml','{"seed":4}',9,-6.54781750691279640363e+00,0.0,NULL);
INSERT INTO "metrics" VALUES('01a2072ed6ee71848316f6be8b9a7967','mpt','{"seed":4}',10,-6.85960579824974,2.26949185603006919897e-01,NULL);
INSERT INTO "metrics" VALUES('01a2072ed6ee71848316f6be8b9a7967','difference','{"seed":4}',11,-3.1178829133694385689e-01,2.26949185603006919897e-01,NULL);
CREATE TABLE series (
	id INTEGER NOT NULL, 
	experiment_id VARCHAR(32) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	labels VARCHAR(1000) NOT NULL, 
	CONSTRAINT pk_series PRIMARY KEY (id), 
	CONSTRAINT fk_series_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (id), 
	CONSTRAINT uq_series_experiment_id_name_labels UNIQUE (experiment_id, name, labels)
);
INSERT INTO "series" VALUES(1,'01a2072ed6ee71848316f6be8b9a7967','score','{"seed":4}');
INSERT INTO "series" VALUES(2,'01a2072edea674d0a6eff7e95974d868','score','{"seed":4}');
CREATE TABLE users (
	id INTEGER NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT uq_users_name UNIQUE (name)
);
INSERT INTO "users" VALUES(1,'local',1795416819.00499);
CREATE TABLE workers (
	id VARCHAR(200) NOT NULL, 
	host VARCHAR(200) NOT NULL, 
	queue VARCHAR(16) NOT NULL, 
	memory_free BIGINT NOT NULL, 
	gpu VARCHAR(200), 
	gpu_driver VARCHAR(50), 
	gpu_memory_total BIGINT, 
	gpu_memory_free BIGINT, 
	started_at DOUBLE NOT NULL, 
	heartbeat_at DOUBLE NOT NULL, 
	CONSTRAINT pk_workers PRIMARY KEY (id)
);
INSERT INTO "workers" VALUES('vm:16086','vm','cpu',17494372352,NULL,NULL,NULL,NULL,1.79541682610601782796e+09,1.79541684512401962274e+09);
CREATE INDEX ix_api_keys_user_id ON api_keys (user_id);
CREATE INDEX ix_experiments_owner_id_id ON experiments (owner_id, id);
CREATE INDEX ix_experiments_queue ON experiments (status, priority, id);
CREATE INDEX ix_datasets_owner_id ON datasets (owner_id);
COMMIT;
