// An API server for discovery.k8s.io/v1 EndpointSlices alone, of kube-apiserver's own library (k8s.io/apiserver): its
// handlers, watch cache and etcd storage. What it leaves out: validation of slices, field managers, identities and TLS.
// README.md says how it is built and what it was used for.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"time"

	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/common"
)

var (
	scheme   = runtime.NewScheme()
	codecs   = serializer.NewCodecFactory(scheme)
	internal = schema.GroupVersion{Group: discovery.GroupName, Version: runtime.APIVersionInternal}
)

func init() {
	// The served type stands for the internal one too: there is one version, so nothing is converted.
	scheme.AddKnownTypes(internal, &discovery.EndpointSlice{}, &discovery.EndpointSliceList{})
	must(discovery.AddToScheme(scheme))
	must(scheme.SetVersionPriority(discovery.SchemeGroupVersion))
	v1 := schema.GroupVersion{Version: "v1"}
	meta.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1, &meta.Status{}, &meta.APIVersions{}, &meta.APIGroupList{}, &meta.APIGroup{}, &meta.APIResourceList{})
}

// strategy is the registry's, less validation: a change of what is meant is a new generation.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                    { return true }
func (strategy) AllowCreateOnUpdate() bool                                { return false }
func (strategy) AllowUnconditionalUpdate() bool                           { return true }
func (strategy) Canonicalize(runtime.Object)                              {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList { return nil }
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	obj.(*discovery.EndpointSlice).Generation = 1
}
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	now, before := obj.(*discovery.EndpointSlice), old.(*discovery.EndpointSlice)
	now.Generation = before.Generation
	if !equality.Semantic.DeepEqual(now.Endpoints, before.Endpoints) || !equality.Semantic.DeepEqual(now.Ports, before.Ports) {
		now.Generation++
	}
}

func main() {
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "where etcd listens")
	listen := flag.String("listen", "127.0.0.1:8001", "where to listen, without TLS")
	flag.Parse()

	codec := codecs.LegacyCodec(discovery.SchemeGroupVersion)
	backend := storagebackend.NewDefaultConfig("/registry", codec)
	backend.Transport.ServerList = []string{*etcd}
	backend.EncodeVersioner = discovery.SchemeGroupVersion

	config := server.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.ExternalAddress = *listen
	config.LoopbackClientConfig = &restclient.Config{Host: *listen, BearerToken: "loopback"}
	config.Authentication.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "anyone", Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	})
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	config.SkipOpenAPIInstallation = true
	config.OpenAPIV3Config = &common.OpenAPIV3Config{
		IgnorePrefixes: []string{"/apis"}, // no schema, so no field managers
		GetDefinitions: func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil },
	}
	must(options.NewEtcdOptions(backend).ApplyTo(&config.Config))

	api, err := config.Complete().New("slices", server.NewEmptyDelegate())
	must(err)
	how := strategy{scheme, names.SimpleNameGenerator}
	resource := discovery.Resource("endpointslices")
	store := &registry.Store{
		NewFunc:                   func() runtime.Object { return &discovery.EndpointSlice{} },
		NewListFunc:               func() runtime.Object { return &discovery.EndpointSliceList{} },
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: discovery.Resource("endpointslice"),
		CreateStrategy:            how,
		UpdateStrategy:            how,
		DeleteStrategy:            how,
		TableConvertor:            rest.NewDefaultTableConvertor(resource),
	}
	must(store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: config.RESTOptionsGetter}))
	group := server.NewDefaultAPIGroupInfo(discovery.GroupName, scheme, runtime.NewParameterCodec(scheme), codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"endpointslices": store}
	must(api.InstallAPIGroup(&group))

	prepared := api.PrepareRun()
	listener, err := net.Listen("tcp", *listen)
	must(err)
	log.Printf("listening on %s", *listen)
	serving := &http.Server{Handler: prepared.Handler, ReadHeaderTimeout: 10 * time.Second}
	must(serving.Serve(listener))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
