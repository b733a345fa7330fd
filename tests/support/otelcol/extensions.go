package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionauth"
)

// Stand-ins for two extensions of contrib that Debian does not package, as far as the shipped files use them. An unknown
// key in their configuration is refused, as contrib refuses it.

type headersSetterConfig struct {
	Headers []headerConfig `mapstructure:"headers"`
}

type headerConfig struct {
	Action      string `mapstructure:"action"`
	Key         string `mapstructure:"key"`
	FromContext string `mapstructure:"from_context"`
	Value       string `mapstructure:"value"`
}

// Validate is called by the Collector.
func (c *headersSetterConfig) Validate() error {
	for _, header := range c.Headers {
		if header.Action != "upsert" || header.Key == "" || (header.FromContext == "") == (header.Value == "") {
			return errors.New("a header needs the action upsert, a key, and either from_context or value")
		}
	}
	return nil
}

// headersSetter sets headers of requests that go out, from the metadata of those that came in.
type headersSetter struct {
	component.StartFunc
	component.ShutdownFunc
	headers []headerConfig
}

var _ extensionauth.HTTPClient = (*headersSetter)(nil)

func newHeadersSetter() extension.Factory {
	return extension.NewFactory(
		component.MustNewType("headers_setter"),
		func() component.Config { return &headersSetterConfig{} },
		func(_ context.Context, _ extension.Settings, config component.Config) (extension.Extension, error) {
			return &headersSetter{headers: config.(*headersSetterConfig).Headers}, nil
		},
		component.StabilityLevelDevelopment,
	)
}

// RoundTripper is extensionauth.HTTPClient.
func (h *headersSetter) RoundTripper(base http.RoundTripper) (http.RoundTripper, error) {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		request = request.Clone(request.Context())
		metadata := client.FromContext(request.Context()).Metadata
		for _, header := range h.headers {
			value := header.Value
			if header.FromContext != "" {
				switch values := metadata.Get(header.FromContext); len(values) {
				case 0:
				case 1:
					value = values[0]
				default:
					return nil, errors.New("more than one value of " + header.FromContext)
				}
			}
			request.Header.Set(header.Key, value)
		}
		return base.RoundTrip(request)
	}), nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

type bearerTokenConfig struct {
	Scheme string              `mapstructure:"scheme"`
	Token  configopaque.String `mapstructure:"token"`
}

// Validate is called by the Collector.
func (c *bearerTokenConfig) Validate() error {
	if c.Token == "" {
		return errors.New("no bearer token provided")
	}
	return nil
}

// bearerTokenAuth lets requests in that show the token.
type bearerTokenAuth struct {
	component.StartFunc
	component.ShutdownFunc
	expected string
}

var _ extensionauth.Server = (*bearerTokenAuth)(nil)

func newBearerTokenAuth() extension.Factory {
	return extension.NewFactory(
		component.MustNewType("bearertokenauth"),
		func() component.Config { return &bearerTokenConfig{Scheme: "Bearer"} },
		func(_ context.Context, _ extension.Settings, config component.Config) (extension.Extension, error) {
			own := config.(*bearerTokenConfig)
			return &bearerTokenAuth{expected: own.Scheme + " " + string(own.Token)}, nil
		},
		component.StabilityLevelDevelopment,
	)
}

// Authenticate is extensionauth.Server.
func (b *bearerTokenAuth) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	for _, name := range []string{"authorization", "Authorization"} {
		if shown := headers[name]; len(shown) > 0 && subtle.ConstantTimeCompare([]byte(shown[0]), []byte(b.expected)) == 1 {
			return ctx, nil
		}
	}
	return ctx, errors.New("missing or unknown token")
}
