// Package loop is the whole of scaling by KEDA at work: deploy/kustomize and
// deploy/keda on a real control plane, with KEDA's operator and metrics adapter. What
// is wanted comes from `tandem scaler`, so that the test knows it, or from the gateways;
// decode is a Deployment, or a LeaderWorkerSet run by its own controller. Run it with
// `make keda`, which builds KEDA and that controller once.
package loop
