module quire.local/examples/go

go 1.24

require (
	google.golang.org/grpc v1.75.0
	quire.local/protos v0.0.0
)

replace quire.local/protos => ./protos
