package boardmongo

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// marshal encodes with the options that the client is set to.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := bson.NewEncoder(bson.NewDocumentWriter(&buf))
	enc.UseJSONStructTags()
	enc.OmitZeroStruct()
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
