// A job of one rank by OpenTelemetry's own JavaScript SDK: usage: node otel_client.js KIND URL JOB
// KIND: protobuf, json, protobuf-gzip, json-gzip or grpc. Ends with 0 if every export succeeded.
'use strict';
const {diag, DiagConsoleLogger, DiagLogLevel} = require('@opentelemetry/api');
const {MeterProvider, PeriodicExportingMetricReader} = require('@opentelemetry/sdk-metrics');
const {resourceFromAttributes} = require('@opentelemetry/resources');
const {CompressionAlgorithm} = require('@opentelemetry/otlp-exporter-base');

const [kind, url, job] = process.argv.slice(2);
const [encoding, compressed] = kind.split('-');
const modules = {
  protobuf: '@opentelemetry/exporter-metrics-otlp-proto',
  json: '@opentelemetry/exporter-metrics-otlp-http',
  grpc: '@opentelemetry/exporter-metrics-otlp-grpc',
};
const {OTLPMetricExporter} = require(modules[encoding]);
const exporter = new OTLPMetricExporter({
  url: encoding === 'grpc' ? url : `${url}/v1/metrics`,
  compression: compressed ? CompressionAlgorithm.GZIP : CompressionAlgorithm.NONE,
  timeoutMillis: 10000,
});
let failed = false;
const send = exporter.export.bind(exporter);
exporter.export = (metrics, done) => send(metrics, (result) => {
  failed = failed || result.code !== 0;
  if (result.error) console.error(String(result.error.message || result.error));
  done(result);
});
diag.setLogger(new DiagConsoleLogger(), DiagLogLevel.ERROR);
const resource = resourceFromAttributes({'service.name': job, 'rankwatch.job.id': job, 'dl.rank': 0, 'dl.world_size': 1});
const reader = new PeriodicExportingMetricReader({exporter, exportIntervalMillis: 3600000, exportTimeoutMillis: 15000});
const provider = new MeterProvider({resource, readers: [reader]});
const meter = provider.getMeter('script');
meter.createObservableGauge('train.step').addCallback((result) => result.observe(41));
provider.forceFlush().catch(() => { failed = true; })
  .then(() => provider.shutdown().catch(() => { failed = true; }))
  .then(() => process.exit(failed ? 1 : 0));
