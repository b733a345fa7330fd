// An OpenTelemetry Collector for tests, of the Collector's own components as Debian packages them: OTLP in and out,
// batches, the memory limiter. The two extensions of contrib that the shipped files name are in extensions.go.
package main

import (
	"errors"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

// version is that of the Collector's packages; the linker sets it.
var version = "unknown"

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		Factories: factories,
		BuildInfo: component.BuildInfo{Command: "otelcol", Description: "OpenTelemetry Collector for tests", Version: version},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{
				envprovider.NewFactory(), fileprovider.NewFactory(), yamlprovider.NewFactory(),
			},
			DefaultScheme: "env",
		}},
	})
	if command.Execute() != nil {
		os.Exit(1)
	}
}

func factories() (otelcol.Factories, error) {
	receivers, errReceivers := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	processors, errProcessors := otelcol.MakeFactoryMap[processor.Factory](
		batchprocessor.NewFactory(), memorylimiterprocessor.NewFactory())
	exporters, errExporters := otelcol.MakeFactoryMap[exporter.Factory](otlphttpexporter.NewFactory())
	extensions, errExtensions := otelcol.MakeFactoryMap[extension.Factory](newHeadersSetter(), newBearerTokenAuth())
	return otelcol.Factories{
		Receivers:  receivers,
		Processors: processors,
		Exporters:  exporters,
		Extensions: extensions,
		Telemetry:  otelconftelemetry.NewFactory(),
	}, errors.Join(errReceivers, errProcessors, errExporters, errExtensions)
}
