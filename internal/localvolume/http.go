package localvolume

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Path is where the agent's API serves the calls below, with the name of the
// call behind it.
const Path = "/csi/" + Name + "/"

// calls are the calls of the controller service that the cluster's controller
// makes: it is not on the node, and so cannot use the socket.
var calls = map[string]bool{
	"CreateVolume": true, "DeleteVolume": true, "ControllerExpandVolume": true, "GetCapacity": true, "ListVolumes": true,
	"CreateSnapshot": true, "DeleteSnapshot": true, "ListSnapshots": true,
}

// maxBody bounds a request; they are small.
const maxBody = 64 << 10

// refusal is the answer to a call that failed: the status of CSI.
type refusal struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

// ServeHTTP answers POST Path+CALL, message in and message out as JSON. Anyone who
// mounts it has to know the caller.
func (d *Driver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := req.PathValue("call")
	answer, err := d.dispatch(req.Context(), name, http.MaxBytesReader(w, req.Body, maxBody))
	w.Header().Set("Content-Type", "application/json")
	if err == nil {
		if text, err := protojson.Marshal(answer); err == nil {
			_, _ = w.Write(text)
			return
		}
	}
	s := status.Convert(err)
	// One code for all refusals: the API server's proxy would make a body of its
	// own out of others.
	w.WriteHeader(http.StatusUnprocessableEntity)
	_ = json.NewEncoder(w).Encode(refusal{s.Code(), s.Message()})
}

func (d *Driver) dispatch(ctx context.Context, name string, body io.Reader) (proto.Message, error) {
	for _, m := range spec.Controller_ServiceDesc.Methods {
		if m.MethodName != name || !calls[name] {
			continue
		}
		answer, err := m.Handler(d, ctx, func(in any) error {
			text, err := io.ReadAll(body)
			if err != nil {
				return status.Errorf(codes.InvalidArgument, "reading the request: %v", err)
			}
			if err := protojson.Unmarshal(text, in.(proto.Message)); err != nil {
				return status.Errorf(codes.InvalidArgument, "reading the request: %v", err)
			}
			return nil
		}, nil)
		if err != nil {
			return nil, err
		}
		return answer.(proto.Message), nil
	}
	return nil, status.Errorf(codes.Unimplemented, "there is no call %q", name)
}

// Call makes one call through post, which sends a body to the agent's Path+call
// and returns what came back with its HTTP status. The error has the code of
// CSI, or Unavailable when the agent could not be asked.
func Call(ctx context.Context, post func(ctx context.Context, path string, body []byte) (int, []byte, error), call string, in,
	out proto.Message) error {
	body, err := protojson.Marshal(in)
	if err != nil {
		return err
	}
	code, answer, err := post(ctx, Path+call, body)
	switch {
	case code == http.StatusUnprocessableEntity:
		var r refusal
		if err := json.Unmarshal(answer, &r); err != nil || r.Code == codes.OK {
			return status.Errorf(codes.Unavailable, "%s: the agent refused without a reason", call)
		}
		return status.Error(r.Code, r.Message)
	case err != nil:
		return status.Errorf(codes.Unavailable, "%s: %v", call, err)
	case code != http.StatusOK:
		return status.Errorf(codes.Unavailable, "%s: the agent answered %d", call, code)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s: reading the answer: %w", call, err)
	}
	return nil
}
